; Classes, and what may hide members of them

(class_definition) @class
(class_definition superclasses: (argument_list (_) @base))
(decorated_definition (decorator) @decorator definition: (class_definition))

; Members: functions, names of a class's body, and attributes that are set

(function_definition name: (identifier) @member)
(class_definition name: (identifier) @member)
(class_definition body: (block (expression_statement (assignment left: (identifier) @member))))
(class_definition body: (block (expression_statement (assignment left: (pattern_list (identifier) @member)))))
(class_definition body: (block (expression_statement (assignment right: (assignment left: (identifier) @member)))))
(class_definition body: (block [
  (if_statement (block (expression_statement (assignment left: (identifier) @member))))
  (if_statement (else_clause (block (expression_statement (assignment left: (identifier) @member)))))
  (try_statement (block (expression_statement (assignment left: (identifier) @member))))
  (import_statement name: (dotted_name (identifier) @member))
  (import_from_statement name: (dotted_name (identifier) @member))
  (for_statement left: (identifier) @member)
]))
(assignment left: (attribute attribute: (identifier) @member))
(pattern_list (attribute attribute: (identifier) @member))
(for_statement left: (attribute attribute: (identifier) @member))
(as_pattern_target (attribute attribute: (identifier) @member))

; Members that are read, or set too

((attribute object: (identifier) @_self attribute: (identifier) @read) (#eq? @_self "self"))
