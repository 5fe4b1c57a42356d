(jsx_opening_element name: (_) @other)
(jsx_closing_element name: (_) @other)
(jsx_self_closing_element name: (_) @other)

; Names that an import may bring (read), and more that the file binds (bound)

(jsx_opening_element name: (identifier) @import.read)
(jsx_self_closing_element name: (identifier) @import.read)
