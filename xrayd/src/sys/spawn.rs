//! Starts a program under ptrace.

use std::{
    io,
    os::unix::process::CommandExt,
    process::{Child, Command},
};

/// Starts `command`. It stops at its first instruction after `exec`, and this OS thread traces it.
pub(crate) fn spawn_traced(command: &mut Command) -> io::Result<Child> {
    let ask_to_be_traced = || nix::sys::ptrace::traceme().map_err(io::Error::from);
    // SAFETY: the closure runs in the forked child before exec. It makes one system call and
    // allocates nothing.
    unsafe { command.pre_exec(ask_to_be_traced) };
    command.spawn()
}
