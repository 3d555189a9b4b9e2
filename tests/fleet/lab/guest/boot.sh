# Boots a host: runs in its cgroups and new namespaces, builds its root, becomes its systemd.
# From the environment: NAME, LOWER (the layers below its disk), GPUS (how many), SHARED (lines
# "outer:inner"), NETWORK (for `ip -batch`), DROPPED (capabilities), and FOLDER with
# root/ (empty), disk/ (its disk) and devices/ (driver/, module/ and nvidia-smi's state).
set -eu

ROOT=$FOLDER/root
read_only() { mount --bind "$1" "$1"; mount -o remount,bind,ro "$1"; }

mount -t overlay overlay -o "lowerdir=$LOWER,upperdir=$FOLDER/disk/upper,workdir=$FOLDER/disk/work" "$ROOT"

# /proc: every sysctl but those of the network is the whole machine's.
mount -t proc -o nosuid,noexec,nodev proc "$ROOT/proc"
mount --bind "$ROOT/proc/sys" "$ROOT/proc/sys"
mount --bind "$ROOT/proc/sys/net" "$ROOT/proc/sys/net"
mount -o remount,bind,ro "$ROOT/proc/sys"
[ ! -e "$ROOT/proc/sysrq-trigger" ] || read_only "$ROOT/proc/sysrq-trigger"

# The kernel's boot id is the same for all hosts and all boots; each boot gets one of its own.
cat /proc/sys/kernel/random/uuid >"$FOLDER/boot_id"
mount --bind "$FOLDER/boot_id" "$ROOT/proc/sys/kernel/random/boot_id"
mount -o remount,bind,ro "$ROOT/proc/sys/kernel/random/boot_id"

# /sys read-only, so that systemd starts no udev, with the cgroups of this cgroup namespace.
mount -t sysfs -o ro,nosuid,noexec,nodev sysfs "$ROOT/sys"
groups=$ROOT/sys/fs/cgroup
if [ "$(wc -l </proc/self/cgroup)" = 1 ]; then
  mount -t cgroup2 -o nosuid,noexec,nodev cgroup2 "$groups"
else
  mount -t tmpfs -o mode=755,size=64k tmpfs "$groups"
  while IFS=: read -r _ controllers _; do
    case $controllers in
      '') folder=unified type=cgroup2 options= ;;
      name=*) folder=${controllers#name=} type=cgroup options=,none,$controllers ;;
      *) folder=$controllers type=cgroup options=,$controllers ;;
    esac
    mkdir "$groups/$folder"
    mount -t $type -o "nosuid,noexec,nodev$options" cgroup "$groups/$folder"
  done </proc/self/cgroup
  mount -o remount,ro "$groups"
fi

# The driver that the host sees: the lab changes these files while the host runs.
mount --bind "$FOLDER/devices/driver" "$ROOT/proc/driver"
mount --bind "$FOLDER/devices/module" "$ROOT/sys/module"
mount --bind "$FOLDER/devices" "$ROOT/usr/lib/fake-gpu"

# /dev: a console that is /dev/null, and a kernel log that the supervisor writes into.
mount -t tmpfs -o mode=755,size=1m,nosuid tmpfs "$ROOT/dev"
mkdir "$ROOT/dev/pts" "$ROOT/dev/shm"
mount -t devpts -o newinstance,mode=620,ptmxmode=666,gid=5 devpts "$ROOT/dev/pts"
mount -t tmpfs -o mode=1777,size=64m,nosuid,nodev tmpfs "$ROOT/dev/shm"
(
  cd "$ROOT/dev"
  mknod -m 666 null c 1 3
  mknod -m 666 zero c 1 5
  mknod -m 666 full c 1 7
  mknod -m 666 random c 1 8
  mknod -m 666 urandom c 1 9
  mknod -m 666 tty c 5 0
  mknod -m 600 console c 1 3
  mkfifo -m 644 kmsg
  ln -s pts/ptmx ptmx
  ln -s /proc/self/fd fd
  ln -s fd/0 stdin
  ln -s fd/1 stdout
  ln -s fd/2 stderr
  if [ "$GPUS" -gt 0 ]; then
    mknod -m 666 nvidiactl c 195 255
    mknod -m 666 nvidia-uvm c 511 0
    gpu=0
    while [ $gpu -lt "$GPUS" ]; do mknod -m 666 nvidia$gpu c 195 $gpu; gpu=$((gpu + 1)); done
  fi
)
mount -t tmpfs -o mode=755,size=64m,nosuid,nodev tmpfs "$ROOT/run"
mount -t tmpfs -o mode=1777,size=256m,nosuid,nodev tmpfs "$ROOT/tmp"

printf '%s\n' "$SHARED" | while IFS=: read -r outer inner; do
  [ -n "$outer" ] || continue
  case $inner in /root/*) chmod 711 "$ROOT/root" ;; esac
  mkdir -p "$ROOT$inner"
  mount --rbind "$outer" "$ROOT$inner"
  mount -o remount,bind,ro "$ROOT$inner"
done

hostname "$NAME"

# The supervisor plugs in the network now; where it has died, there is nothing to boot for.
printf r
read -r go
exec </dev/null >&2
printf 'link set lo up\n%s' "$NETWORK" | ip -batch -

cd "$ROOT"
mkdir -p .outside
pivot_root . .outside
exec chroot . /bin/sh -c '
  umount -l /.outside && rmdir /.outside && mount --make-rshared / &&
  exec setpriv --bounding-set "$0" env -i container=lab HOME=/root LANG=C.UTF-8 \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --show-status=false' "$DROPPED"
