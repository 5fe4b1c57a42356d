(formal_parameters (identifier) @local.definition.parameter)

; Names that an import may bring (read), and more that the file binds (bound)

(class_heritage (identifier) @import.read)
