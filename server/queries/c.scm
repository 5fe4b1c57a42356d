; Scopes

[
  (function_definition)
  (compound_statement)
  (for_statement)
] @local.scope

; Blocks of statements

[
  (compound_statement)
  (case_statement)
] @block

; Definitions: all words of a node

(function_declarator declarator: (identifier) @local.definition.function)
(preproc_def name: (identifier) @local.definition.import)
(preproc_function_def name: (identifier) @local.definition.import)
(enumerator name: (identifier) @local.definition.type)

(parameter_declaration declarator: (_) @local.definition.parameter)
(declaration declarator: (identifier) @local.definition.var)
(declaration declarator: (pointer_declarator) @local.definition.var)
(declaration declarator: (array_declarator) @local.definition.var)
(init_declarator declarator: (_) @local.definition.var)

; Reads, and what else an identifier may be

(identifier) @local.reference

(ERROR) @error
(sizeof_expression value: (parenthesized_expression (identifier) @other))
(case_statement value: (_) @other)
(call_expression function: (identifier) @other)

; Names that an import may bring (read), and more that the file binds (bound)

(identifier) @import.read
(type_identifier) @import.read
(primitive_type) @import.read
(type_definition declarator: (_) @import.bound)
