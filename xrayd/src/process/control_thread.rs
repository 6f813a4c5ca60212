//! The thread that attaches to a process or starts a program, and then controls the session.

use std::sync::{
    Arc,
    mpsc::{Receiver, SendError, sync_channel},
};

use super::{
    attach::{Attached, Prepared},
    group::Root,
    session_table::Reserved,
    untraced::LaunchThread,
};
use crate::{
    pid::Pid,
    refusal::{Refusal, Result},
};

/// The result of `begin` on a control thread, for that thread.
#[derive(Debug)]
pub(super) enum Begun {
    /// A session, and the reservation of its pid where there is one.
    Traced(Box<Prepared>, Option<Reserved>),
    Untraced {
        launch_thread: Box<LaunchThread>,
        root: Root,
    },
}

/// The part of [`Begun`] for the thread that waits for it.
#[derive(Debug)]
pub(super) enum Stands {
    Traced(Attached, Option<Reserved>),
    Untraced(Root),
}

/// Runs `begin` on a new thread, which then controls the new session until its end. The result
/// comes from the returned receiver. If that is gone by then, the session ends at once. The thread
/// calls `after` when the session has ended.
pub(super) fn start_control_thread(
    name: String,
    pid: Pid,
    begin: impl FnOnce() -> Result<Begun> + Send + 'static,
    after: impl FnOnce() + Send + 'static,
) -> Result<Receiver<Result<Stands>>> {
    let (answer, answered) = sync_channel(1);
    std::thread::Builder::new()
        .name(name)
        .spawn(move || match begin() {
            Ok(Begun::Traced(prepared, reserved)) => {
                let Prepared {
                    session,
                    report,
                    controller,
                    commands,
                } = *prepared;
                let session = Arc::new(session);
                let attached = Attached { session, report };
                let sent = answer.send(Ok(Stands::Traced(attached, reserved)));
                let reserved = match sent {
                    // The receiver is gone. Without a session, the thread detaches.
                    Err(SendError(Ok(Stands::Traced(attached, reserved)))) => {
                        drop(attached);
                        reserved
                    }
                    _ => None,
                };
                controller.run(&commands);
                drop(reserved);
                after();
            }
            Ok(Begun::Untraced {
                launch_thread,
                root,
            }) => {
                let _ = answer.send(Ok(Stands::Untraced(root)));
                launch_thread.run();
            }
            Err(refusal) => {
                let _ = answer.send(Err(refusal));
            }
        })
        .map_err(|error| Refusal::from_io(pid, "start a thread", &error))?;
    Ok(answered)
}

/// The name of the control thread of a process.
pub(super) fn control_thread_name(pid: Pid) -> String {
    format!("ctl-{pid}")
}
