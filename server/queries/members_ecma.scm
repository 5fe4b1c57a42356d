; Classes, and what may hide members of them

(class_declaration) @class
(class) @class

; Members: methods, and properties that are set

(method_definition name: (_) @member)
(assignment_expression left: (member_expression property: (_) @member))
(array_pattern (member_expression property: (_) @member))
(pair_pattern value: (member_expression property: (_) @member))

; Members that are read, or set too

(member_expression object: (this) property: (_) @read)
