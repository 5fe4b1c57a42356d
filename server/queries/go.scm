; Scopes

[
  (function_declaration)
  (method_declaration)
  (func_literal)
  (block)
  (if_statement)
  (for_statement)
  (expression_switch_statement)
  (type_switch_statement)
  (expression_case)
  (type_case)
  (default_case)
  (communication_case)
] @local.scope

; Blocks of statements

[
  (block)
  (statement_list)
  (expression_case)
  (type_case)
  (default_case)
  (communication_case)
] @block

; Definitions: all words of a node

(function_declaration name: (identifier) @local.definition.function)
(type_spec name: (_) @local.definition.type)
(type_alias name: (_) @local.definition.type)
(import_spec) @local.definition.import
(source_file (const_declaration (const_spec name: (identifier) @local.definition.type)))
(source_file (var_declaration (var_spec name: (identifier) @local.definition.type)))
(source_file (var_declaration (var_spec_list (var_spec name: (identifier) @local.definition.type))))

(parameter_declaration name: (identifier) @local.definition.parameter)
(variadic_parameter_declaration name: (identifier) @local.definition.parameter)
(type_parameter_declaration name: (identifier) @local.definition.parameter)

(const_spec name: (identifier) @local.definition.var)
(var_spec name: (identifier) @local.definition.var)
(short_var_declaration left: (expression_list (identifier) @local.definition.var))
(range_clause left: (expression_list (identifier) @local.definition.var))
(receive_statement left: (expression_list (identifier) @local.definition.var))
(type_switch_statement alias: (expression_list (identifier) @local.definition.var))

; Reads, and what else an identifier may be

(identifier) @local.reference

(ERROR) @error
(call_expression function: (identifier) @other)
(keyed_element key: (_) @other)

; Names that an import may bring (read), and more that the file binds (bound)

(selector_expression operand: (identifier) @import.read)
(qualified_type package: (package_identifier) @import.read)
