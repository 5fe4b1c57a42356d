(jsx_opening_element name: (_) @other)
(jsx_closing_element name: (_) @other)
(jsx_self_closing_element name: (_) @other)
