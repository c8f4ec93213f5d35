#!/bin/sh
# GPUs of this host as attributes. Always succeeds: a probe that fails puts the host in ERROR.
helper=/usr/libexec/kvm-gpu/one-helper
[ -x "$helper" ] && sudo -n "$helper" probe </dev/null
exit 0
