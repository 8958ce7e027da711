#!/usr/bin/env bash
# Unpack Gazebo 11 (Debian bullseye's packages) into a folder: no root, nothing outside the folder.
#
#   install.sh FOLDER
#
# The packages come from wherever this machine's own apt configuration says Debian is.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
target=${1:?usage: install.sh FOLDER}
while [[ $target == ?*/ ]]; do target=${target%/}; done
fail() { echo "error: $*" >&2; exit 1; }

if [ -x "$target/usr/bin/gzserver" ]; then
  echo "Gazebo is in $target already"
  exit 0
fi
if [ -e "$target" ] && { [ ! -d "$target" ] || [ -n "$(ls -A "$target")" ]; }; then
  fail "$target is there and is no Gazebo: name a folder that is empty or not there yet"
fi
for tool in apt-get dpkg-deb g++; do
  command -v "$tool" >/dev/null || fail "$tool is missing: Gazebo can be installed on Debian only"
done
[ "$(dpkg --print-architecture)" = amd64 ] || fail "only tried on amd64"

# In one-line and in deb822 style alike, the archive's address ends in /debian.
sources=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.{list,sources} 2>/dev/null || true)
mirror=$(grep -v '^#' <<<"$sources" | grep -oE '[a-z+]+://[^ ]*/debian/?( |$)' | tr -d ' ' || true)
mirror=${mirror%%$'\n'*}
[ -n "$mirror" ] || fail "no Debian archive in /etc/apt/sources.list or sources.list.d"
keys=/usr/share/keyrings/debian-archive-keyring.gpg
[ -e "$keys" ] || fail "$keys is missing: install debian-archive-keyring"

mkdir -p "$(dirname "$target")"
partial=$(mktemp -d "$target.XXXXXX")
work=$(mktemp -d)
trap 'rm -rf "$work" "$partial"' EXIT
mkdir -p "$work"/lists/partial "$work"/cache/archives/partial "$work"/packages
: >"$work/status"
echo "deb [arch=amd64 signed-by=$keys] ${mirror%/} bullseye main" >"$work/sources.list"

# State of its own: the machine's apt neither sees this nor is changed by it.
apt=(apt-get -qq
  -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=/dev/null
  -o Dir::Etc::preferencesparts=/dev/null -o "Dir::State::lists=$work/lists"
  -o "Dir::Cache=$work/cache" -o "Dir::State::status=$work/status"
  -o Acquire::Check-Valid-Until=false -o Acquire::Languages=none -o Acquire::Retries=3)
if [ "$(id -u)" -eq 0 ]; then apt+=(-o APT::Sandbox::User=root); fi

echo "downloading some 300 packages, 150 MB"
"${apt[@]}" update
(cd "$work/packages" && xargs "${apt[@]}" download <"$here/packages.txt")
echo "unpacking"
for package in "$work"/packages/*.deb; do
  dpkg-deb --fsys-tarfile "$package" | tar -x -C "$partial" \
    --exclude='./usr/share/doc*' --exclude='./usr/share/man*' --exclude='./usr/share/locale*'
done
[ -x "$partial/usr/bin/gzserver" ] || fail "the packages hold no gzserver"
chmod 755 "$partial"
rmdir "$target" 2>/dev/null || true
mv -T "$partial" "$target"
