; Scopes

[
  (lambda)
  (function_definition)
] @local.scope.function

(class_definition) @local.scope.class

[
  (list_comprehension)
  (set_comprehension)
  (dictionary_comprehension)
  (generator_expression)
] @local.scope

; Blocks of statements

[
  (module)
  (block)
] @block

; Definitions: all words of a node

(function_definition name: (identifier) @local.definition.function)
(class_definition name: (identifier) @local.definition.type)
(type_alias_statement left: (_) @local.definition.type)
(type_parameter) @local.definition.parameter

[
  (import_statement)
  (import_from_statement)
  (future_import_statement)
  (global_statement)
  (nonlocal_statement)
] @local.definition.import

(parameters (identifier) @local.definition.parameter)
(lambda_parameters (identifier) @local.definition.parameter)
(default_parameter name: (identifier) @local.definition.parameter)
(typed_default_parameter name: (identifier) @local.definition.parameter)
(typed_parameter . (identifier) @local.definition.parameter)
(list_splat_pattern (identifier) @local.definition.parameter)
(dictionary_splat_pattern (identifier) @local.definition.parameter)

(assignment left: (identifier) @local.definition.var)
(pattern_list (identifier) @local.definition.var)
(tuple_pattern (identifier) @local.definition.var)
(list_pattern (identifier) @local.definition.var)
(for_statement left: (identifier) @local.definition.var)
(for_in_clause left: (identifier) @local.definition.var)
(named_expression name: (identifier) @local.definition.wide)
(as_pattern_target) @local.definition.var
(case_pattern) @local.definition.var

; Reads, and what else an identifier may be

(identifier) @local.reference

(ERROR) @error
(type) @other
(attribute attribute: (identifier) @other)
(keyword_argument name: (identifier) @other)

; Names that an import may bring (read), and more that the file binds (bound)

(attribute object: (identifier) @import.read)
(call function: (identifier) @import.read)
(decorator (identifier) @import.read)
(type (identifier) @import.read)
(class_definition superclasses: (argument_list (identifier) @import.read))
