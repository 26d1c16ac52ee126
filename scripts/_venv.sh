# Shared by the scripts here; source it, don't run it. It leaves the shell in the checkout, and `ensure_venv EXTRA`
# makes .venv hold p2prl[EXTRA] in the tested versions. PYTHON chooses the interpreter of a new .venv.

cd "$(dirname "${BASH_SOURCE[0]}")/.."
ROOT=$PWD
VENV=$ROOT/.venv
TORCH=$(grep '^torch==' constraints.txt)

say() { printf '%s\n' "$*" >&2; }

find_python() {
  local candidate
  for candidate in ${PYTHON:+"$PYTHON"} python3.11 python3.12 python3.13 python3.10 python3 python; do
    # Run it: a name on the PATH may be a shim for a Python that is not there.
    if "$candidate" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 14))' 2>/dev/null; then
      command -v "$candidate"
      return
    elif [ -n "${PYTHON:-}" ]; then
      say "PYTHON=$PYTHON is no Python 3.10 to 3.13"
      return 1
    fi
  done
  say "no Python 3.10 to 3.13 was found; install one, or name it: PYTHON=/path/to/python $0"
  return 1
}

# Windows has Scripts where the others have bin.
venv_bin() { if [ -d "$VENV/Scripts" ]; then printf '%s' "$VENV/Scripts"; else printf '%s' "$VENV/bin"; fi; }

# What an install depends on. If none of it changed, there is nothing to do.
stamp_of() { { printf '%s ' "$1"; "$BIN/python" -V; cat pyproject.toml constraints.txt; } 2>&1 | cksum; }

stamped() { [ -f "$VENV/stamp-$1" ] && [ "$(cat "$VENV/stamp-$1")" = "$(stamp_of "$1")" ]; }

pip_install() {
  "$BIN/python" -m pip install --quiet --quiet --disable-pip-version-check --no-compile -c constraints.txt "$@"
}

# To bytecode, on all processors: pip does it on one. Packages hold a few files that are for other Pythons, as templates
# are; what did not compile here says so where it is imported.
compile_installed() {
  "$BIN/python" -m compileall -qq -j 0 "$("$BIN/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" || true
}

# ensure_venv EXTRA: train, or dev, which includes it. The second time takes no time.
ensure_venv() {
  local extra=$1 python
  BIN=$(venv_bin)
  if ! "$BIN/python" -c '' 2>/dev/null; then
    python=$(find_python)
    say "making .venv with $("$python" -V 2>&1)"
    rm -rf "$VENV"
    "$python" -m venv "$VENV" || { say "on Debian and Ubuntu: apt install python3-venv"; return 1; }
    BIN=$(venv_bin)
  fi
  if stamped "$extra" || stamped dev; then return; fi
  # torch first and by itself: pip then takes the build that this machine's index offers, and nothing else moves it.
  say "installing $TORCH (the first time, this takes minutes)"
  pip_install "$TORCH"
  say "installing p2prl[$extra]"
  pip_install --editable ".[$extra]"
  compile_installed
  rm -f "$VENV"/stamp-*
  stamp_of "$extra" >"$VENV/stamp-$extra"
}
