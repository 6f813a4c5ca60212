//! Wakes the task of a session when its process ends. One thread waits for all processes.

use std::{
    collections::HashMap,
    io,
    os::fd::AsFd as _,
    sync::{Arc, Mutex},
    thread,
};

use nix::{
    errno::Errno,
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
        eventfd::{EfdFlags, EventFd},
    },
};

use crate::{lock::lock, sys::PidFd, tasks::LateWaker};

/// The most ends that one wait returns.
const AT_ONCE: usize = 64;
/// The number of the descriptor that ends the thread.
const OVER: u64 = 0;

/// The processes whose ends are waited for. The thread begins with the first of them.
#[derive(Debug, Default)]
pub(crate) struct ExitWatch(Mutex<Option<Arc<Watched>>>);

/// A process whose end is waited for until this is dropped.
#[derive(Debug)]
pub(crate) struct AwaitedExit {
    watched: Arc<Watched>,
    number: u64,
}

#[derive(Debug)]
struct Watched {
    epoll: Epoll,
    /// Signalled when the thread is to end.
    over: EventFd,
    tasks: Mutex<Tasks>,
}

/// The tasks that are woken, by number.
#[derive(Debug, Default)]
struct Tasks {
    wakers: HashMap<u64, LateWaker>,
    last: u64,
}

// === impl ExitWatch ===

impl ExitWatch {
    /// Wakes a task when the process ends, or at once if it has ended.
    ///
    /// # Errors
    /// No descriptor, watch or thread is left.
    pub(crate) fn wake_at_end(&self, process: &PidFd, waker: LateWaker) -> io::Result<AwaitedExit> {
        let watched = self.watched()?;
        let number = {
            let mut tasks = lock(&watched.tasks);
            tasks.last += 1;
            let number = tasks.last;
            tasks.wakers.insert(number, waker);
            number
        };
        let exit = AwaitedExit { watched, number };
        // The kernel drops the watch with the descriptor. It reports the end once.
        let once = EpollFlags::EPOLLIN | EpollFlags::EPOLLONESHOT;
        let event = EpollEvent::new(once, number);
        exit.watched.epoll.add(process.as_fd(), event)?;
        Ok(exit)
    }

    fn watched(&self) -> io::Result<Arc<Watched>> {
        let mut begun = lock(&self.0);
        if let Some(watched) = &*begun {
            return Ok(Arc::clone(watched));
        }
        let watched = Arc::new(Watched {
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            over: EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?,
            tasks: Mutex::default(),
        });
        let over = EpollEvent::new(EpollFlags::EPOLLIN, OVER);
        watched.epoll.add(watched.over.as_fd(), over)?;
        let waits = Arc::clone(&watched);
        thread::Builder::new()
            .name("exits".to_owned())
            .spawn(move || waits.wait())?;
        Ok(Arc::clone(begun.insert(watched)))
    }
}

impl Drop for ExitWatch {
    fn drop(&mut self) {
        if let Some(watched) = &*lock(&self.0) {
            // The counter cannot overflow: it is written once.
            let _ = watched.over.write(1);
        }
    }
}

// === impl AwaitedExit ===

impl Drop for AwaitedExit {
    fn drop(&mut self) {
        lock(&self.watched.tasks).wakers.remove(&self.number);
    }
}

// === impl Watched ===

impl Watched {
    /// Wakes tasks until the watch is dropped.
    fn wait(&self) {
        let mut ends = [EpollEvent::empty(); AT_ONCE];
        loop {
            let ended = match self.epoll.wait(&mut ends, EpollTimeout::NONE) {
                Ok(ended) => ended,
                Err(Errno::EINTR) => continue,
                Err(error) => {
                    // Each session looks for the end of its process every five seconds, too.
                    tracing::error!(%error, "cannot wait for the ends of processes");
                    return;
                }
            };
            for end in ends.iter().take(ended) {
                let number = end.data();
                if number == OVER {
                    return;
                }
                let waker = lock(&self.tasks).wakers.remove(&number);
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        process::{Child, Command},
        sync::mpsc::{SyncSender, sync_channel},
        time::{Duration, Instant},
    };

    use super::*;
    use crate::{
        pid::Pid,
        tasks::{Next, Pool, Task},
    };

    const LONG: Duration = Duration::from_secs(60);

    struct Tells(SyncSender<()>);

    impl Task for Tells {
        fn step(&mut self) -> Next {
            let _ = self.0.send(());
            Next::At(Instant::now() + LONG)
        }
    }

    /// A child that is killed at the end of the test.
    struct Sleeper(Child);

    impl Sleeper {
        fn new() -> Self {
            Self(Command::new("sleep").arg("600").spawn().unwrap())
        }

        fn hold(&self) -> PidFd {
            PidFd::open(Pid::try_from(self.0.id()).unwrap()).unwrap()
        }

        fn end(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            self.end();
        }
    }

    #[test]
    fn a_task_is_woken_when_its_process_ends_and_no_other_task() {
        let pool = Pool::new("test", 1).begin().unwrap();
        let exits = ExitWatch::default();
        let await_end = |process: &PidFd| {
            let (ran, runs) = sync_channel(4);
            let waker = LateWaker::default();
            waker.set(pool.add(Tells(ran)));
            // The first step, and perhaps another one because the waker was set.
            runs.recv_timeout(LONG).unwrap();
            while runs.recv_timeout(Duration::from_millis(100)).is_ok() {}
            (exits.wake_at_end(process, waker).unwrap(), runs)
        };
        let mut sleepers = [Sleeper::new(), Sleeper::new(), Sleeper::new()];
        let processes = sleepers.each_ref().map(Sleeper::hold);
        let [(_first, first), (_second, second), (third, third_runs)] =
            processes.each_ref().map(await_end);
        // Nobody waits for the third one any more.
        drop(third);
        let again = sleepers[1].hold();
        sleepers[2].end();
        sleepers[1].end();
        second.recv_timeout(LONG).unwrap();
        assert!(first.try_recv().is_err() && third_runs.try_recv().is_err());
        // A process that has ended already.
        let (_exit, runs) = await_end(&again);
        runs.recv_timeout(LONG).unwrap();
    }
}
