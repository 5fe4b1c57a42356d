(abstract_class_declaration) @class
(extends_clause value: (_) @base)
(class_declaration (decorator) @decorator)
(export_statement (decorator) @decorator)
(index_signature) @decorator

(public_field_definition name: (_) @member)
(method_signature name: (_) @member)
(abstract_method_signature name: (_) @member)
(required_parameter (accessibility_modifier) pattern: (identifier) @member)
(optional_parameter (accessibility_modifier) pattern: (identifier) @member)
