//! A walk over processes that goes on where one of them does not let go of the thread that looks at
//! it.
//!
//! A look reads what a process has mapped. A file system that does not answer (FUSE, NFS) keeps the
//! thread that reads, for as long as its server likes. A walk therefore looks on a thread of its
//! own. After [`PATIENCE`] with one process it leaves that thread behind and goes on with another
//! one.
//!
//! Threads left behind are bounded: while one hangs, no walk looks at its process again, and while
//! [`MOST_HUNG`] hang with processes of one user, no walk looks at any process of that user.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Condvar, Mutex, PoisonError, Weak},
    thread,
    time::{Duration, Instant},
};

use super::effective_user;
use crate::{lock::lock, pid::Pid};

/// How long a look at one process may take: reading the largest program takes some seconds.
const PATIENCE: Duration = Duration::from_secs(5);
/// Threads that hang with processes of one user at most.
const MOST_HUNG: usize = 2;

/// Threads that were left behind by all walks.
static HUNG: Mutex<Vec<Hung>> = Mutex::new(Vec::new());

#[derive(Debug)]
struct Hung {
    pid: Pid,
    user: u32,
    /// Gone when the thread has come back.
    thread: Weak<()>,
}

/// One walk. The lock is held by no thread that looks.
#[derive(Debug)]
struct Walk<T> {
    progress: Mutex<Progress<T>>,
    /// Signalled when the last process is done.
    done: Condvar,
}

#[derive(Debug)]
struct Progress<T> {
    /// The number of the thread that goes on; one that was left behind has an older one.
    thread: u32,
    left: VecDeque<Pid>,
    /// The process that it looks at, its user, and since when.
    current: Option<(Pid, u32, Instant)>,
    found: Vec<T>,
    is_done: bool,
}

/// Looks at these processes in turn, and returns what was found.
///
/// # Errors
/// No thread can be made.
pub(super) fn walk<T: Send + 'static>(
    pids: Vec<Pid>,
    look: impl Fn(Pid) -> Option<T> + Send + Sync + 'static,
) -> io::Result<Vec<T>> {
    walk_with(pids, PATIENCE, Arc::new(look))
}

fn walk_with<T: Send + 'static>(
    pids: Vec<Pid>,
    patience: Duration,
    look: Arc<impl Fn(Pid) -> Option<T> + Send + Sync + 'static>,
) -> io::Result<Vec<T>> {
    let walk = Arc::new(Walk {
        progress: Mutex::new(Progress {
            thread: 0,
            left: pids.into(),
            current: None,
            found: Vec::new(),
            is_done: false,
        }),
        done: Condvar::new(),
    });
    let mut token = walk.spawn(0, &look)?;
    let mut progress = lock(&walk.progress);
    while !progress.is_done {
        // A thread that ends without having done so has panicked; the process that it looked at is
        // left out.
        let ended = token.strong_count() == 0;
        let hung = progress
            .current
            .filter(|(_, _, since)| ended || since.elapsed() >= patience);
        if let Some((pid, user, _)) = hung {
            if !ended {
                tracing::warn!(%pid, user, "left out of a list: its files do not answer");
                lock(&HUNG).push(Hung {
                    pid,
                    user,
                    thread: token,
                });
            }
            progress.thread += 1;
            progress.current = None;
            let number = progress.thread;
            drop(progress);
            token = walk.spawn(number, &look)?;
            progress = lock(&walk.progress);
            continue;
        }
        let waited = walk.done.wait_timeout(progress, patience / 4);
        progress = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
    Ok(std::mem::take(&mut progress.found))
}

/// Whether a thread hangs with this process, or too many with processes of this user.
fn is_given_up(pid: Pid, user: u32) -> bool {
    let mut hung = lock(&HUNG);
    hung.retain(|hung| hung.thread.strong_count() > 0);
    let of_user = hung.iter().filter(|hung| hung.user == user).count();
    of_user >= MOST_HUNG || hung.iter().any(|hung| hung.pid == pid)
}

// === impl Walk ===

impl<T: Send + 'static> Walk<T> {
    fn spawn(
        self: &Arc<Self>,
        number: u32,
        look: &Arc<impl Fn(Pid) -> Option<T> + Send + Sync + 'static>,
    ) -> io::Result<Weak<()>> {
        let (walk, look) = (Arc::clone(self), Arc::clone(look));
        let token = Arc::new(());
        let weak = Arc::downgrade(&token);
        thread::Builder::new()
            .name("list".to_owned())
            .spawn(move || {
                let _token = token;
                walk.run(number, &*look);
            })?;
        Ok(weak)
    }

    fn run(&self, number: u32, look: &impl Fn(Pid) -> Option<T>) {
        let mut found = None;
        loop {
            let pid = {
                let mut progress = lock(&self.progress);
                if progress.thread != number {
                    return;
                }
                progress.found.extend(found.take());
                progress.current = None;
                let Some(pid) = progress.left.pop_front() else {
                    progress.is_done = true;
                    self.done.notify_all();
                    return;
                };
                pid
            };
            let user = effective_user(pid);
            if is_given_up(pid, user) {
                continue;
            }
            lock(&self.progress).current = Some((pid, user, Instant::now()));
            found = look(pid);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    /// Two of the same user; then none of that user's is looked at until they come back.
    #[test]
    fn a_process_that_hangs_is_left_out_and_not_tried_again() {
        let pids = |numbers: &[u32]| -> Vec<Pid> {
            let numbers = numbers.iter();
            numbers.map(|&pid| Pid::try_from(pid).unwrap()).collect()
        };
        // No such processes: all are of the user that no process has.
        let all = pids(&[0x4000_0001, 0x4000_0002, 0x4000_0003]);
        let (answer, answers) = sync_channel::<()>(0);
        let answers = Arc::new(Mutex::new(answers));
        let hangs = all[1];
        let look = Arc::new(move |pid: Pid| {
            if pid == hangs {
                let _ = answers.lock().unwrap().recv();
            }
            Some(pid)
        });
        let walked = || walk_with(all.clone(), Duration::from_millis(200), Arc::clone(&look));
        assert_eq!(walked().unwrap(), [all[0], all[2]]);
        assert!(is_given_up(hangs, 0));
        assert!(!is_given_up(all[0], 0));
        let begun = Instant::now();
        assert_eq!(walked().unwrap(), [all[0], all[2]]);
        assert!(begun.elapsed() < PATIENCE, "it was not tried again");
        answer.send(()).unwrap();
        while is_given_up(hangs, 0) {
            thread::yield_now();
        }
        drop(answer);
        assert_eq!(walked().unwrap(), all);
    }

    #[test]
    fn a_look_that_panics_leaves_out_its_process_alone() {
        let all: Vec<Pid> = [0x4000_0011, 0x4000_0012]
            .map(|pid| Pid::try_from(pid).unwrap())
            .into();
        let first = all[0];
        let look = move |pid: Pid| {
            assert_ne!(pid, first, "on purpose");
            Some(pid)
        };
        let found = walk_with(all.clone(), Duration::from_millis(200), Arc::new(look));
        assert_eq!(found.unwrap(), [all[1]]);
    }
}
