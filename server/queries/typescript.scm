[
  (function_type)
  (function_signature)
  (method_signature)
  (abstract_method_signature)
  (abstract_class_declaration)
  (interface_declaration)
] @local.scope

(required_parameter pattern: (identifier) @local.definition.parameter)
(optional_parameter pattern: (identifier) @local.definition.parameter)

(function_signature name: (identifier) @local.definition.function)
(abstract_class_declaration name: (_) @local.definition.type)
(enum_declaration name: (identifier) @local.definition.type)
(internal_module name: (_) @local.definition.type)
(module name: (_) @local.definition.type)
(import_alias) @local.definition.import

(type_annotation) @other
(type_arguments) @other
(type_alias_declaration) @other
(interface_declaration) @other
(type_predicate_annotation) @other
(asserts_annotation) @other
(as_expression (_) (_) @other)
(satisfies_expression (_) (_) @other)

; Names that an import may bring (read), and more that the file binds (bound)

(extends_clause value: (identifier) @import.read)
(type_annotation (type_identifier) @import.read)
(interface_declaration name: (_) @import.bound)
(type_alias_declaration name: (_) @import.bound)
(type_parameter name: (_) @import.bound)
