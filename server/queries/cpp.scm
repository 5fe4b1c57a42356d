[
  (lambda_expression)
  (for_range_loop)
  (if_statement)
  (while_statement)
  (catch_clause)
  (class_specifier)
  (struct_specifier)
  (namespace_definition)
] @local.scope

(optional_parameter_declaration declarator: (_) @local.definition.parameter)
(for_range_loop declarator: (_) @local.definition.parameter)
(declaration declarator: (reference_declarator) @local.definition.var)
(lambda_capture_specifier) @local.definition.parameter
(using_declaration) @local.definition.import
(alias_declaration name: (_) @local.definition.type)
(field_declaration declarator: (_) @local.definition.type)

(attribute_declaration) @other
(qualified_identifier) @other
(template_function name: (identifier) @other)
