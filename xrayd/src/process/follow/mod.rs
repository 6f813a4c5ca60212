//! The search for processes that come from a traced one. No tracer stays with a process, so a
//! thread looks for them.
//!
//! ```text
//!             a look finds it         it has sleds, and the policy traces it
//!  (unknown) ─────────────────► watched ─────────────────────────────────► traced
//!                                  ▲  ▲                                      │
//!                exec, no sleds ───┘  └────────────────────────── exec ──────┘
//!
//!             detached by a client, or exec that is not followed
//!   traced ────────────────────────────────────────────────────────► left
//! ```
//!
//! Where the kernel allows it, perf events wake the thread for a look. Elsewhere the thread looks
//! at short intervals.
//!
//! The children of watched and traced processes are looked for. The program of a child (`Program`)
//! distinguishes a fork of its parent from an `exec`: after `exec` the program is another one, even
//! if the file is the same.

mod follower;
mod known;
mod pace;
mod policy;
mod search;
mod sessions;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{SyncSender, sync_channel},
    },
};

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::{group::Group, refusals::lost_thread};
use crate::{
    liveness::{Liveness, NoAnswer},
    panics::message_of,
    process::follow::{follower::Signal, search::Search},
    refusal::{Refusal, Result},
    target::PerfWatcher,
};

pub(crate) use follower::Follower;
pub use policy::{Finding, Follow, NotFollowed};
pub(crate) use sessions::Sessions;

/// Starts the search for processes that come from the group's first process. `processes` is the
/// watcher of forks, execs and exits. The search ends when `sessions` returns `None`.
///
/// # Errors
/// No thread can be started, or the process cannot be looked at.
pub(crate) fn start_search<S: Sessions>(
    group: Arc<Group>,
    processes: &Arc<PerfWatcher>,
    sessions: impl Fn() -> Option<S> + Send + 'static,
) -> Result<Follower> {
    let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
    let eventfd = EventFd::from_flags(flags)
        .map_err(|error| Refusal::from_io(group.root(), "create an eventfd", &error.into()))?;
    let signal = Arc::new(Signal {
        eventfd: Arc::new(eventfd),
        over: AtomicBool::new(false),
    });
    let subscription = processes.listen(Arc::<EventFd>::clone(&signal.eventfd));
    let root = group.root();
    let liveness = Liveness::new(root);
    let of_thread = Arc::clone(&liveness);
    let (running, end) = sync_channel(0);
    // A thread that hangs counts as one of its user.
    let ticket = group
        .root_session()
        .map(|session| Arc::clone(&session.ticket));
    let mut search = Search::new(group, Arc::clone(&signal), subscription);
    let (begin, begun) = sync_channel(1);
    let thread = std::thread::Builder::new()
        .name(format!("follow-{root}"))
        .spawn(move || {
            let _running: SyncSender<()> = running;
            let _ticket = ticket;
            of_thread.looks_for_requests();
            let group = search.group();
            // Nothing of the search is used after a panic.
            let ran = catch_unwind(AssertUnwindSafe(move || {
                let begun = search.begin();
                let has_begun = begun.is_ok();
                // Without a receiver, the search ends after a look.
                let _ = begin.send(begun);
                if has_begun {
                    search.run(&sessions);
                }
            }));
            if let Err(payload) = ran {
                let message = message_of(&*payload);
                tracing::error!(
                    %root,
                    message,
                    "a thread panicked: the daemon follows no more processes of the group"
                );
                group.members.finish();
            }
        })
        .map_err(|error| Refusal::from_io(root, "start a thread", &error))?;
    // The program does not run on before it was looked at: it may become another one.
    match liveness.watch().wait(&begun) {
        Ok(begun) => {
            begun.map_err(|error| Refusal::from_io(root, "read its state in /proc", &error))?
        }
        Err(NoAnswer::Ended) => return Err(lost_thread(root)),
        Err(why) => {
            signal.over.store(true, Ordering::Release);
            return Err(liveness.refusal(why));
        }
    }
    Ok(Follower {
        signal,
        thread,
        liveness,
        end,
    })
}
