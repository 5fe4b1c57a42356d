; Scopes

[
  (function_declaration)
  (function_expression)
  (generator_function)
  (generator_function_declaration)
  (arrow_function)
  (method_definition)
] @local.scope.function

[
  (class)
  (class_declaration)
  (class_static_block)
] @local.scope

[
  (statement_block)
  (for_statement)
  (for_in_statement)
  (catch_clause)
  (switch_body)
] @local.scope

; Blocks of statements

[
  (program)
  (statement_block)
  (switch_case)
  (switch_default)
] @block

; Definitions: all words of a node

(function_declaration name: (identifier) @local.definition.function)
(generator_function_declaration name: (identifier) @local.definition.function)
(function_expression name: (identifier) @local.definition.function)
(class_declaration name: (_) @local.definition.type)
(class name: (_) @local.definition.type)
(import_statement) @local.definition.import

(arrow_function parameter: (identifier) @local.definition.parameter)
(catch_clause parameter: (identifier) @local.definition.parameter)

(lexical_declaration (variable_declarator name: (identifier) @local.definition.var))
(variable_declaration (variable_declarator name: (identifier) @local.definition.wide))
(for_in_statement left: (identifier) @local.definition.var)
(shorthand_property_identifier_pattern) @local.definition.var
(pair_pattern value: (identifier) @local.definition.var)
(array_pattern (identifier) @local.definition.var)
(rest_pattern (identifier) @local.definition.var)
(assignment_pattern left: (identifier) @local.definition.var)

; Reads, and what else an identifier may be

(identifier) @local.reference
(shorthand_property_identifier) @local.reference

(ERROR) @error
(export_specifier) @other
(new_expression constructor: (identifier) @other)
(binary_expression operator: "instanceof" right: (identifier) @other)
(unary_expression operator: "typeof" argument: (identifier) @other)

; Names that an import may bring (read), and more that the file binds (bound)

(member_expression object: (identifier) @import.read)
(call_expression function: (identifier) @import.read)
(new_expression constructor: (identifier) @import.read)
