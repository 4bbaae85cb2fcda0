#!/usr/bin/env bash
# Lays Intel's offline GPU compiler (ocloc and the graphics compiler that it opens) into a folder of its own and
# prints the path of a command that runs it. Nothing is installed on the system, no right is needed.
#
#   OCLOC=$(tools/intel_gpu_compiler.sh build/intel-gpu-compiler)
#   "$OCLOC" compile -file image.spv -spirv_input -device bmg …
#
# The packages come from Debian unstable, by the mirror that this machine's apt asks already, with all that they
# need down to the C library: the machine itself may be older. About 100 MB once, then nothing.
#
# Exit code 69 (service unavailable), and why on stderr, where this cannot be done: no apt, no Debian mirror
# among apt's sources, no network.
set -euo pipefail

fail() {
  echo "intel_gpu_compiler.sh: $*" >&2
  exit 69
}

folder=$(realpath -m "${1:?usage: intel_gpu_compiler.sh FOLDER}")
command=$folder/ocloc
if [ -x "$command" ]; then
  echo "$command"
  exit
fi

for tool in apt-get apt-cache dpkg-deb; do
  command -v $tool >/dev/null || fail "needs $tool, which Debian has"
done
[ "$(uname -m)" = x86_64 ] || fail "Debian has this compiler for x86_64 alone, this is $(uname -m)"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
[ -r $keyring ] || fail "needs Debian's keys, $keyring"
# Both forms of a source: "deb [options] URI suite …" and "URIs: URI …".
mirror=$(grep -hsoE '^(deb|URIs:) .*' /etc/apt/sources.list /etc/apt/sources.list.d/*.{list,sources} |
  grep -oE '[a-z+]+://[^ ]*/debian/?( |$)' | head -n 1 | tr -d ' ') || true
[ -n "$mirror" ] || fail "found no Debian mirror in /etc/apt"

# A half-laid folder must not look like a whole one: all happens beside it, the last step moves it there.
mkdir -p "$(dirname "$folder")"
work=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "$work"' EXIT

# An apt of our own: it knows one suite, believes that nothing is installed, and writes below $work alone.
mkdir -p "$work"/apt/{etc/{apt.conf.d,preferences.d},state/lists/partial,cache/archives/partial}
: > "$work/apt/status"
echo "deb [signed-by=$keyring check-valid-until=no] $mirror sid main" > "$work/apt/etc/sources.list"
cat > "$work/apt/apt.conf" <<CONF
APT::Architecture "amd64";
APT::Architectures { "amd64"; };
APT::Install-Recommends "false";
APT::Sandbox::User "";
Acquire::Languages "none";
Acquire::Retries "3";
Dir::Etc "$work/apt/etc";
Dir::Etc::main "/dev/null";
Dir::State "$work/apt/state";
Dir::State::status "$work/apt/status";
Dir::Cache "$work/apt/cache";
CONF
export APT_CONFIG=$work/apt/apt.conf DEBIAN_FRONTEND=noninteractive
log=$work/apt/log
explain() {
  tail -n 5 "$log" >&2
  fail "$1"
}
apt-get --quiet --error-on=any update >"$log" 2>&1 || explain "apt-get update failed with $mirror"

# Libraries carry a number in their names that changes from time to time. ocloc opens them by name, so that they
# are no dependencies of its package: the graphics compiler, its front end, memory descriptions.
newest() {
  apt-cache pkgnames "$1" | grep -E "^$1[0-9]+\$" | sort -V | tail -n 1
}
packages=(intel-ocloc)
for library in libigc libigdfcl libigdgmm; do
  package=$(newest $library) || fail "Debian unstable has no package $library*"
  packages+=("$package")
done
apt-get --quiet --yes --download-only install "${packages[@]}" >"$log" 2>&1 ||
  explain "cannot download ${packages[*]}"
mkdir "$work/root"
for package in "$work"/apt/cache/archives/*.deb; do
  dpkg-deb --extract "$package" "$work/root"
  basename "$package" .deb >> "$work/packages"
done
rm -rf "$work/apt"

# ocloc runs on the C library that it came with.
root=$folder/root
ocloc=$(cd "$work/root" && ls usr/bin/ocloc* | head -n 1)
loader=$(cd "$work/root" && ls usr/lib64/ld-linux-x86-64.so.2 lib64/ld-linux-x86-64.so.2 \
  usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2 2>/dev/null | head -n 1) || true
[ -n "$ocloc" ] && [ -n "$loader" ] || fail "the packages hold no ocloc or no loader"
cat > "$work/ocloc" <<RUN
#!/bin/sh
exec "$root/$loader" --library-path "$root/usr/lib/x86_64-linux-gnu:$root/lib/x86_64-linux-gnu" "$root/$ocloc" "\$@"
RUN
chmod +x "$work/ocloc"
chmod 755 "$work"
rmdir "$folder" 2>/dev/null || true
[ ! -e "$folder" ] || fail "$folder is there and is no folder of this script's: remove it, or name another"
mv -T "$work" "$folder"
"$command" --help >/dev/null 2>&1 || fail "what was laid into $folder does not run"
echo "$command"
