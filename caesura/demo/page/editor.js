// Monaco as a client of the language server: texts that follow each key, and ghost text.
import { editor as monaco, languages, KeyCode, KeyMod, Range, Selection, Uri } from "/monaco/editor.js";
import { Points } from "/text.js";

self.MonacoEnvironment = { getWorker: () => new Worker("/monaco/worker.js", { type: "module" }) };

// Ids that Monaco has another name for, or no grammar of its own.
const GRAMMARS = { shellscript: "shell", javascriptreact: "javascript", typescriptreact: "typescript", c: "cpp" };
const dark = matchMedia("(prefers-color-scheme: dark)");

monaco.defineTheme("light", { base: "vs", inherit: true, rules: [], colors: { "editor.background": "#ffffff" } });
monaco.defineTheme("dark", { base: "vs-dark", inherit: true, rules: [], colors: { "editor.background": "#1a1e1c" } });

export class Editor {
  /** Calls `onChange` when the text, its document or the cursor is another. */
  constructor(element, server, { onChange, onFill }) {
    this.server = server;
    this.documents = new Map();
    const theme = () => (dark.matches ? "dark" : "light");
    this.view = monaco.create(element, {
      model: null,
      theme: theme(),
      automaticLayout: true,
      ariaLabel: "Text with gaps",
      fontFamily: getComputedStyle(document.documentElement).getPropertyValue("--mono"),
      fontSize: 13,
      lineHeight: 21,
      minimap: { enabled: false },
      scrollBeyondLastLine: false,
      overviewRulerLanes: 0,
      renderLineHighlight: "none",
      renderFinalNewline: "on",
      folding: false,
      lineNumbersMinChars: 3,
      padding: { top: 10, bottom: 10 },
      quickSuggestions: false,
      suggestOnTriggerCharacters: false,
      wordBasedSuggestions: "off",
      unicodeHighlight: { ambiguousCharacters: false },
      inlineSuggest: { enabled: true, showToolbar: "never" },
      scrollbar: { alwaysConsumeMouseWheel: false, verticalScrollbarSize: 9, horizontalScrollbarSize: 9 },
    });
    dark.addEventListener("change", () => monaco.setTheme(theme()));
    this.gap = this.view.createDecorationsCollection();
    this.view.addCommand(KeyMod.CtrlCmd | KeyCode.Enter, onFill);
    this.view.onDidChangeModelContent(() => {
      this.gap.clear();
      onChange();
    });
    this.view.onDidChangeModel(onChange);
    languages.registerInlineCompletionsProvider({ pattern: "**" }, {
      provideInlineCompletions: (model, position, context, token) => this.complete(model, position, context, token),
      disposeInlineCompletions: () => {},
    });
  }

  /** A document; `gaps` are offsets in code points. */
  add({ name, language, text, gaps }) {
    const grammar = GRAMMARS[language] ?? language;
    const model = monaco.createModel(text, grammar, Uri.from({ scheme: "inmemory", path: `/${name}` }));
    const uri = model.uri.toString();
    const marks = gaps.map((gap) => ({ range: emptyAt(text, gap), options: { stickiness: 1 } }));
    this.documents.set(name, { model, language, gaps: model.deltaDecorations([], marks) });
    const textDocument = { uri, languageId: language, version: model.getVersionId(), text: model.getValue() };
    this.server.notify("textDocument/didOpen", { textDocument });
    model.onDidChangeContent(({ changes, versionId }) => {
      const contentChanges = changes.map(({ range, text }) => ({ range: toLsp(range), text }));
      this.server.notify("textDocument/didChange", { textDocument: { uri, version: versionId }, contentChanges });
    });
  }

  /** Show a document as it was left. Whether it is shown for the first time. */
  open(name) {
    if (this.name) this.documents.get(this.name).left = { view: this.view.saveViewState(), gap: this.gap.getRange(0) };
    this.name = name;
    const { model, language, gaps, left } = this.documents.get(name);
    this.language = language;
    this.gaps = gaps;
    this.view.setModel(model);
    this.gap.clear();
    if (left) this.view.restoreViewState(left.view);
    if (left?.gap) this.mark(left.gap);
    this.view.focus();
    return !left;
  }

  /** Put the cursor into a gap of the document, wherever edits have moved it; else at the start. */
  go(index) {
    const model = this.view.getModel();
    const range = model.getDecorationRange(this.gaps[index] ?? "") ?? model.getFullModelRange();
    const position = range.getStartPosition();
    this.view.setPosition(position);
    this.view.revealPositionInCenterIfOutsideViewport(position);
    this.mark(Range.fromPositions(position));
    this.view.focus();
  }

  mark(range) {
    const options = range.isEmpty()
      ? { beforeContentClassName: "gap-empty", showIfCollapsed: true, stickiness: 1 }
      : { inlineClassName: "gap", stickiness: 1 };
    this.gap.set([{ range, options }]);
  }

  /** What is to be filled, marked in the text: offsets in UTF-16, and whether it is still what it was. */
  ask() {
    const model = this.view.getModel();
    const range = this.view.getSelection();
    const text = model.getValue();
    this.mark(range);
    return {
      name: this.name,
      text,
      start: model.getOffsetAt(range.getStartPosition()),
      end: model.getOffsetAt(range.getEndPosition()),
      language: this.language,
      range,
      current: () => this.view.getModel() === model && model.getValue() === text,
    };
  }

  insert(range, text) {
    this.view.pushUndoStop();
    this.view.executeEdits("fill", [{ range, text, forceMoveMarkers: true }]);
    this.view.pushUndoStop();
    this.view.focus();
  }

  async complete(model, position, context, token) {
    const params = {
      textDocument: { uri: model.uri.toString() },
      position: { line: position.lineNumber - 1, character: position.column - 1 },
      context: { triggerKind: context.triggerKind === 1 ? 1 : 2 },
    };
    const answer = await this.server.request("textDocument/inlineCompletion", params, token);
    if (!answer) return undefined;
    const items = (answer.items ?? answer).map(({ insertText, range }) => ({ insertText, range: fromLsp(range) }));
    return { items };
  }
}

/** The place of an offset, in lines as the text has them: Monaco makes all line breaks one kind. */
function emptyAt(text, offset) {
  const lines = new Points(text).slice(0, offset).split(/\r\n|\r|\n/);
  return Range.fromPositions({ lineNumber: lines.length, column: lines.at(-1).length + 1 });
}

const toLsp = (range) => ({
  start: { line: range.startLineNumber - 1, character: range.startColumn - 1 },
  end: { line: range.endLineNumber - 1, character: range.endColumn - 1 },
});

const fromLsp = ({ start, end }) => new Range(start.line + 1, start.character + 1, end.line + 1, end.character + 1);
