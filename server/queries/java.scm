; Scopes

[
  (method_declaration)
  (constructor_declaration)
  (lambda_expression)
  (block)
  (constructor_body)
  (for_statement)
  (enhanced_for_statement)
  (try_with_resources_statement)
  (catch_clause)
  (switch_block_statement_group)
  (switch_rule)
  (class_declaration)
  (interface_declaration)
  (enum_declaration)
  (record_declaration)
  (class_body)
] @local.scope

; Blocks of statements

[
  (block)
  (constructor_body)
  (switch_block_statement_group)
] @block

; Definitions: all words of a node

(import_declaration) @local.definition.import
(field_declaration declarator: (variable_declarator name: (_) @local.definition.type))
(constant_declaration declarator: (variable_declarator name: (_) @local.definition.type))
(enum_constant name: (_) @local.definition.type)

(formal_parameter name: (_) @local.definition.parameter)
(spread_parameter (variable_declarator name: (_) @local.definition.parameter))
(catch_formal_parameter name: (_) @local.definition.parameter)
(enhanced_for_statement name: (_) @local.definition.parameter)
(lambda_expression parameters: (identifier) @local.definition.parameter)
(inferred_parameters) @local.definition.parameter

(local_variable_declaration declarator: (variable_declarator name: (_) @local.definition.var))
(resource name: (_) @local.definition.var)
(instanceof_expression name: (_) @local.definition.var)
(type_pattern) @local.definition.var
(record_pattern) @local.definition.var

; Reads, and what else an identifier may be

(identifier) @local.reference

(ERROR) @error
(method_invocation name: (identifier) @other)
(field_access field: (identifier) @other)
(scoped_identifier) @other
(method_reference (_) (identifier) @other)
(method_declaration name: (identifier) @other)
(labeled_statement . (identifier) @other)
(break_statement (identifier) @other)
(continue_statement (identifier) @other)
(switch_label (identifier) @other)
(annotation) @other
(marker_annotation) @other
(element_value_pair key: (identifier) @other)

; Names that an import may bring (read), and more that the file binds (bound)

(type_identifier) @import.read
(marker_annotation name: (identifier) @import.read)
(annotation name: (identifier) @import.read)
(method_invocation object: (identifier) @import.read)
(method_invocation !object name: (identifier) @import.read)
(field_access object: (identifier) @import.read)
(scoped_type_identifier) @import.bound
(class_declaration name: (_) @import.bound)
(interface_declaration name: (_) @import.bound)
(enum_declaration name: (_) @import.bound)
(record_declaration name: (_) @import.bound)
(annotation_type_declaration name: (_) @import.bound)
(method_declaration name: (_) @import.bound)
(type_parameter) @import.bound
