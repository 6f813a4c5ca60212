//! A walk over processes that goes on when one of them blocks the thread that looks at it.
//!
//! A look reads the files that a process has mapped. A file system that does not answer (FUSE, NFS)
//! blocks the thread that reads, for as long as its server likes. So a walk looks on a thread of
//! its own. After [`PATIENCE`] with one process it leaves that thread behind and goes on with
//! another thread.
//!
//! Threads left behind are bounded: while one hangs, no walk looks at its process again, and while
//! [`MOST_HUNG`] processes of one user hang, no walk looks at any process of that user. Walks that
//! look at the same process at the same time each leave a thread behind.

use std::{
    collections::{HashSet, VecDeque},
    io,
    sync::{Arc, Condvar, Mutex, PoisonError, Weak},
    thread,
    time::{Duration, Instant},
};

use super::effective_user;
use crate::{lock::lock, pid::Pid};

/// Longest look at one process. Reading the largest program takes some seconds.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most processes of one user that threads may hang with.
const MOST_HUNG: usize = 2;

static WALKS: Walks = Walks {
    patience: PATIENCE,
    hung: Mutex::new(Vec::new()),
};

/// All walks of the daemon.
#[derive(Debug)]
struct Walks {
    patience: Duration,
    /// Threads that were left behind. The next look removes those that have come back.
    hung: Mutex<Vec<Hung>>,
}

#[derive(Debug)]
struct Hung {
    pid: Pid,
    user: u32,
    /// Gone when the thread has come back.
    thread: Weak<()>,
}

/// One walk. No thread holds the lock while it looks.
#[derive(Debug)]
struct Walk<T> {
    walks: &'static Walks,
    progress: Mutex<Progress<T>>,
    /// Signalled when a thread ends. A thread also ends after the last process.
    changed: Condvar,
}

#[derive(Debug)]
struct Progress<T> {
    /// Number of the thread that goes on. A thread that was left behind has a lower number.
    thread: u32,
    left: VecDeque<Pid>,
    /// The process that this thread looks at, its user, and the start of the look.
    current: Option<(Pid, u32, Instant)>,
    found: Vec<T>,
    is_done: bool,
}

/// State that a thread holds until it ends, also by a panic.
struct Running<T> {
    walk: Arc<Walk<T>>,
    token: Option<Arc<()>>,
}

/// Looks at these processes in turn, and returns the results.
///
/// # Errors
/// No thread can be made.
pub(crate) fn walk<T: Send + 'static>(
    pids: Vec<Pid>,
    look: impl Fn(Pid) -> Option<T> + Send + Sync + 'static,
) -> io::Result<Vec<T>> {
    WALKS.walk(pids, &Arc::new(look))
}

// === impl Walks ===

impl Walks {
    fn walk<T: Send + 'static>(
        &'static self,
        pids: Vec<Pid>,
        look: &Arc<impl Fn(Pid) -> Option<T> + Send + Sync + 'static>,
    ) -> io::Result<Vec<T>> {
        let walk = Arc::new(Walk {
            walks: self,
            progress: Mutex::new(Progress {
                thread: 0,
                left: pids.into(),
                current: None,
                found: Vec::new(),
                is_done: false,
            }),
            changed: Condvar::new(),
        });
        let mut token = walk.spawn(0, look)?;
        let mut progress = lock(&walk.progress);
        while !progress.is_done {
            // A thread that ends before the walk is done has panicked. Its process is left out.
            let ended = token.strong_count() == 0;
            let stuck = progress
                .current
                .filter(|(_, _, since)| ended || since.elapsed() >= self.patience);
            let Some((pid, user, _)) = stuck else {
                let waited = walk.changed.wait_timeout(progress, self.patience / 4);
                progress = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            };
            if !ended {
                tracing::warn!(
                    %pid,
                    user,
                    "left a process out whose files do not answer"
                );
                lock(&self.hung).push(Hung {
                    pid,
                    user,
                    thread: token,
                });
            }
            progress.thread += 1;
            progress.current = None;
            let number = progress.thread;
            drop(progress);
            token = walk.spawn(number, look)?;
            progress = lock(&walk.progress);
        }
        Ok(std::mem::take(&mut progress.found))
    }

    /// True if a thread hangs with this process, or if threads hang with too many processes of this
    /// user.
    fn is_given_up(&self, pid: Pid, user: u32) -> bool {
        let mut hung = lock(&self.hung);
        hung.retain(|hung| hung.thread.strong_count() > 0);
        let of_user = hung.iter().filter(|hung| hung.user == user);
        let of_user: HashSet<Pid> = of_user.map(|hung| hung.pid).collect();
        of_user.len() >= MOST_HUNG || hung.iter().any(|hung| hung.pid == pid)
    }
}

// === impl Walk ===

impl<T: Send + 'static> Walk<T> {
    fn spawn(
        self: &Arc<Self>,
        number: u32,
        look: &Arc<impl Fn(Pid) -> Option<T> + Send + Sync + 'static>,
    ) -> io::Result<Weak<()>> {
        let token = Arc::new(());
        let weak = Arc::downgrade(&token);
        let running = Running {
            walk: Arc::clone(self),
            token: Some(token),
        };
        let look = Arc::clone(look);
        thread::Builder::new()
            .name("list".to_owned())
            .spawn(move || running.walk.run(number, &*look))?;
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
                    return;
                };
                pid
            };
            let user = effective_user(pid);
            if self.walks.is_given_up(pid, user) {
                continue;
            }
            lock(&self.progress).current = Some((pid, user, Instant::now()));
            found = look(pid);
        }
    }
}

// === impl Running ===

impl<T> Drop for Running<T> {
    fn drop(&mut self) {
        let _progress = lock(&self.walk.progress);
        self.token = None;
        self.walk.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        atomic::{AtomicU32, Ordering},
        mpsc::sync_channel,
    };

    use super::*;

    fn pids(numbers: &[u32]) -> Vec<Pid> {
        let numbers = numbers.iter();
        numbers.map(|&pid| Pid::try_from(pid).unwrap()).collect()
    }

    #[test]
    fn a_process_that_hangs_is_left_out_and_not_tried_again() {
        static OWN: Walks = Walks {
            patience: Duration::from_millis(300),
            hung: Mutex::new(Vec::new()),
        };
        let all = pids(&[0x4000_0001, 0x4000_0002, 0x4000_0003]);
        let (answer, answers) = sync_channel::<()>(0);
        let answers = Mutex::new(answers);
        let hangs = all[1];
        let looks = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&looks);
        let look = Arc::new(move |pid: Pid| {
            if pid == hangs {
                counted.fetch_add(1, Ordering::SeqCst);
                let _ = answers.lock().unwrap().recv();
            }
            Some(pid)
        });
        let begun = Instant::now();
        // A thread that gets no processor for this long is left behind as well, and comes back.
        let walk_until = |expected: &[Pid]| {
            while OWN.walk(all.clone(), &look).unwrap() != expected {
                assert!(begun.elapsed() < Duration::from_secs(60));
            }
        };
        let others = [all[0], all[2]];
        walk_until(&others);
        assert!(OWN.is_given_up(hangs, 0));
        walk_until(&others);
        assert_eq!(looks.load(Ordering::SeqCst), 1);
        answer.send(()).unwrap();
        drop(answer);
        walk_until(&all);
    }

    /// Threads hang with few of a user's processes, however many walks there are at the same time.
    #[test]
    fn processes_of_a_user_with_two_that_hang_are_left_out() {
        static OWN: Walks = Walks {
            patience: PATIENCE,
            hung: Mutex::new(Vec::new()),
        };
        let token = Arc::new(());
        let hang = |pid| {
            let hung = Hung {
                pid,
                user: 1000,
                thread: Arc::downgrade(&token),
            };
            OWN.hung.lock().unwrap().push(hung);
        };
        let [first, second, other] =
            [0x4000_0021, 0x4000_0022, 0x4000_0023].map(|pid| Pid::try_from(pid).unwrap());
        // Two walks at the same time.
        hang(first);
        hang(first);
        assert!(OWN.is_given_up(first, 1000));
        assert!(!OWN.is_given_up(other, 1000));
        hang(second);
        assert!(OWN.is_given_up(other, 1000));
        assert!(!OWN.is_given_up(other, 1001));
        drop(token);
        assert!(!OWN.is_given_up(other, 1000));
        assert!(OWN.hung.lock().unwrap().is_empty());
    }

    #[test]
    fn a_look_that_panics_leaves_out_its_process_alone() {
        static OWN: Walks = Walks {
            patience: Duration::from_secs(60),
            hung: Mutex::new(Vec::new()),
        };
        let all = pids(&[0x4000_0011, 0x4000_0012]);
        let first = all[0];
        let look = Arc::new(move |pid: Pid| {
            assert_ne!(pid, first, "on purpose");
            Some(pid)
        });
        assert_eq!(OWN.walk(all.clone(), &look).unwrap(), [all[1]]);
    }
}
