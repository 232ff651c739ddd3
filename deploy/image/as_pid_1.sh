#!/bin/sh
# Run a command as an orchestrator would that grants nothing: as process 1 of a namespace of its own, as user 10001, without
# capabilities or a way to them, on a root file system that cannot be written, beside a volume and a /tmp that can. NVIDIA's
# device files are the only ones of the host, where it has any.
# As root: unshare --mount --pid --fork sh as_pid_1.sh <root> <volume> <command> ...
set -eu
root=$1
volume=$2
shift 2
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro,nosuid,nodev,noexec sys "$root/sys"
mount -t tmpfs -o mode=1777 tmp "$root/tmp"
mount -t tmpfs dev "$root/dev"
for device in /dev/null /dev/zero /dev/random /dev/urandom /dev/nvidia*; do
    [ -c "$device" ] || continue
    : > "$root$device"
    mount --bind "$device" "$root$device"
done
mkdir "$root/dev/shm"
mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
mount --bind "$volume" "$root/var/lib/conv-advisor"
mount -o remount,bind,ro "$root" "$root"
exec setpriv --no-new-privs --bounding-set=-all,+setuid,+setgid,+sys_chroot \
    /usr/sbin/chroot --userspec=10001:10001 "$root" "$@"
