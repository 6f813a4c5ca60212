//! The thread that attaches to a process or starts a program. It hands the session's control to the
//! pool of all sessions. If it has started a program, it holds the program until that may run.

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
    control::Controllers,
    pid::Pid,
    refusal::{Refusal, Result},
};

/// The result of `begin` on the thread of an attach, for that thread.
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

/// Calls a function when it is dropped.
struct AtEnd<F: FnOnce()>(Option<F>);

/// Runs `begin` on a new thread. The result comes from the returned receiver. If that is gone by
/// then, the session ends at once. `after` is called when the session has ended.
pub(super) fn start_attach_thread(
    name: String,
    pid: Pid,
    controllers: &Controllers,
    begin: impl FnOnce() -> Result<Begun> + Send + 'static,
    after: impl FnOnce() + Send + 'static,
) -> Result<Receiver<Result<Stands>>> {
    let no_thread = |error| Refusal::from_io(pid, "start a thread", &error);
    let (answer, answered) = sync_channel(1);
    let controllers = controllers.begin().map_err(no_thread)?;
    std::thread::Builder::new()
        .name(name)
        .spawn(move || match begin() {
            Ok(Begun::Traced(prepared, reserved)) => {
                let Prepared {
                    session,
                    report,
                    controller,
                    commands,
                    held,
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
                // The reservation goes first.
                controllers.add(controller, commands, (reserved, AtEnd(Some(after))));
                if let Some((holder, thread)) = held
                    && let Some(release) = holder.wait()
                {
                    release.release(thread);
                }
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
        .map_err(no_thread)?;
    Ok(answered)
}

impl<F: FnOnce()> Drop for AtEnd<F> {
    fn drop(&mut self) {
        if let Some(after) = self.0.take() {
            after();
        }
    }
}

/// The name of the thread that attaches to a process.
pub(super) fn attach_thread_name(pid: Pid) -> String {
    format!("attach-{pid}")
}
