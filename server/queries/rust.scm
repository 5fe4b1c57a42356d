; Scopes

[
  (function_item)
  (closure_expression)
  (block)
  (if_expression)
  (while_expression)
  (for_expression)
  (match_arm)
  (impl_item)
  (trait_item)
  (mod_item)
  (macro_definition)
] @local.scope

; Blocks of statements

(block) @block

; Definitions: all words of a node

(function_item name: (identifier) @local.definition.function)
(const_item name: (identifier) @local.definition.type)
(static_item name: (identifier) @local.definition.type)
(mod_item name: (identifier) @local.definition.type)
(macro_definition) @local.definition.type
(use_declaration) @local.definition.import

(parameter pattern: (_) @local.definition.parameter)
(closure_parameters) @local.definition.parameter
(const_parameter name: (identifier) @local.definition.parameter)
(for_expression pattern: (_) @local.definition.parameter)
(match_arm pattern: (match_pattern (_) @local.definition.parameter .))
(match_pattern . (_) @local.definition.parameter)

(let_declaration pattern: (_) @local.definition.var)
(let_condition pattern: (_) @local.definition.var)

; Reads, and what else an identifier may be

(identifier) @local.reference

(ERROR) @error
(scoped_identifier) @other
(call_expression function: (identifier) @other)
(generic_function function: (identifier) @other)
(macro_invocation macro: (_) @other)
(attribute_item) @other
(inner_attribute_item) @other
(token_tree "." . (identifier) @other)
(token_tree "::" . (identifier) @other)
(token_tree (identifier) @other . "::")
(token_tree (identifier) @other . "!")
(token_tree (identifier) @other . "=")
(token_tree (identifier) @other . ":")
(token_tree (identifier) @other . (token_tree))

; Names that an import may bring (read), and more that the file binds (bound)

(scoped_identifier path: (identifier) @import.read)
(scoped_type_identifier path: (identifier) @import.read)
(type_identifier) @import.read
(scoped_type_identifier name: (_) @import.bound)
(struct_item name: (_) @import.bound)
(enum_item name: (_) @import.bound)
(union_item name: (_) @import.bound)
(type_item name: (_) @import.bound)
(trait_item name: (_) @import.bound)
(associated_type name: (_) @import.bound)
(type_parameters) @import.bound
(extern_crate_declaration) @import.bound
