(class_heritage (_) @base)
(class_declaration decorator: (decorator) @decorator)
(field_definition property: (_) @member)
