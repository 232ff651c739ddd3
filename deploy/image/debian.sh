#!/bin/sh
# Put the packages of a list into a folder, and nothing that they merely depend on: no shell, no package manager, no init.
# Their maintainer scripts are not run; the little that those would do is done here. deploy/image/inside.py proves that
# every library in the image finds what it links to.
#   debian.sh <list> <folder>
set -eu
list=$(realpath "$1")
root=$2

mkdir -p /tmp/packages
cd /tmp/packages
sed 's/#.*//' "$list" | xargs apt-get download -qq

mkdir -p "$root"
cd "$root"
mkdir -p dev etc/ld.so.conf.d proc sys tmp usr/bin usr/lib usr/lib64 usr/sbin var/lib/dpkg/status.d
chmod 1777 tmp
for name in bin lib lib64 sbin; do
    ln -s "usr/$name" "$name"
done
for package in /tmp/packages/*.deb; do
    dpkg-deb --fsys-tarfile "$package" | tar --extract --keep-directory-symlink
    # Where scanners look for what is installed when there is no dpkg.
    dpkg-deb --field "$package" > "var/lib/dpkg/status.d/$(dpkg-deb --field "$package" Package)"
done

# The loader's cache must exist for the NVIDIA container toolkit to add the driver's libraries to it.
echo 'include /etc/ld.so.conf.d/*.conf' > etc/ld.so.conf
ldconfig -r .

echo 'hosts: files dns' > etc/nsswitch.conf
echo 'conv-advisor:x:10001:10001::/var/lib/conv-advisor:/nonexistent' > etc/passwd
echo 'conv-advisor:x:10001:' > etc/group
install -d -m 0750 -o 10001 -g 10001 var/lib/conv-advisor
