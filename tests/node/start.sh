# The node's power button. Its first boot has the machine's boot id, so that a deploy made on the machine and the node agree;
# every later one (docker restart) has an id of its own, as after a reboot.
set -eu
mkdir -p /root/.ssh /run/sshd
printf '%s\n' "$SSH_KEY" > /root/.ssh/authorized_keys
printf 'ListenAddress 127.0.0.1:%s\n' "$SSH_PORT" > /etc/ssh/sshd_config.d/node.conf
if [ -e /var/booted ]; then
    cat /proc/sys/kernel/random/uuid > /run/boot_id
    mount --bind /run/boot_id /proc/sys/kernel/random/boot_id
fi
touch /var/booted
exec /sbin/init
