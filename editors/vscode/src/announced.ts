/** What the server announces beyond the standard: `experimental.caesura` of its capabilities. */

import type { LanguageClient } from "vscode-languageclient/node";

/** The names of its methods, and `nextEdit`, if it answers `textDocument/copilotInlineEdit`: docs/protocol.md. */
export interface Announced {
  stream?: string;
  cursor?: string;
  nextEdit?: boolean;
}

export function announced(client: LanguageClient | undefined): Announced {
  const experimental = client?.initializeResult?.capabilities.experimental as { caesura?: Announced } | undefined;
  return experimental?.caesura ?? {};
}
