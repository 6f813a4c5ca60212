//! The control of a session as a task: a step is one command, and the work that is due.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use super::{controller::Controller, handle::Commands};
use crate::{
    liveness::UntilEnd,
    panics::message_of,
    target::{AwaitedExit, ExitWatch},
    tasks::{Next, Pool, RunningPool, Task},
};

/// The pool of the controllers of all sessions.
#[derive(Debug)]
pub(crate) struct Controllers {
    pool: Pool,
    exits: Arc<ExitWatch>,
}

/// The same, once its threads have begun.
#[derive(Debug)]
pub(crate) struct RunningControllers {
    pool: RunningPool,
    exits: Arc<ExitWatch>,
}

/// A controller, its commands, and what is dropped when it has ended.
struct ControlTask<E> {
    controller: Controller,
    commands: Commands,
    /// True after the first step.
    has_begun: bool,
    _exit: Option<AwaitedExit>,
    _exits: Arc<ExitWatch>,
    _until_end: UntilEnd,
    _at_end: E,
}

// === impl Controllers ===

impl Controllers {
    /// A pool with this usual number of workers.
    pub(crate) fn new(workers: usize) -> Self {
        Self {
            pool: Pool::new("controller", workers),
            exits: Arc::default(),
        }
    }

    /// See [`Pool::longest_wait`].
    pub(crate) fn longest_wait(&self) -> Duration {
        self.pool.longest_wait()
    }

    /// Starts the first threads of the pool.
    ///
    /// # Errors
    /// The system starts none.
    pub(crate) fn begin(&self) -> io::Result<RunningControllers> {
        Ok(RunningControllers {
            pool: self.pool.begin()?,
            exits: Arc::clone(&self.exits),
        })
    }
}

// === impl RunningControllers ===

impl RunningControllers {
    /// Controls a session until a detach or the end of the target. `at_end` is dropped then.
    pub(crate) fn add<E: Send + 'static>(
        &self,
        controller: Controller,
        commands: Commands,
        at_end: E,
    ) {
        let late = commands.waker();
        let output = Arc::clone(&controller.patching.output);
        let process = controller.patching.target.pidfd();
        let exit = self.exits.wake_at_end(process, late.clone());
        let exit = exit.inspect_err(|error| {
            let pid = controller.patching.target.pid().as_raw();
            tracing::warn!(pid, %error, "the end of a process may be noticed five seconds late");
        });
        let waker = self.pool.add(ControlTask {
            _until_end: commands.liveness().until_end(),
            controller,
            commands,
            has_begun: false,
            _exit: exit.ok(),
            _exits: Arc::clone(&self.exits),
            _at_end: at_end,
        });
        output.control.set(waker.clone());
        late.set(waker);
    }
}

// === impl Task for ControlTask ===

impl<E: Send + 'static> Task for ControlTask<E> {
    /// After a panic the controller detaches from the process, and the session has failed. Commands
    /// that arrive meanwhile get no answer.
    fn step(&mut self) -> Next {
        let liveness = Arc::clone(self.commands.liveness());
        liveness.begins_step();
        // After a panic the controller does not continue its last operation. The cleanup uses only
        // the target's memory and the list of its sleds. Data behind locks is consistent between
        // statements.
        let stepped = catch_unwind(AssertUnwindSafe(|| self.turn()));
        let next = stepped.unwrap_or_else(|payload| {
            let message = format!("a bug in xrayd: {}", message_of(&*payload));
            self.controller.patching.output.fail(message);
            self.controller.end_of_session("control");
            Next::Done
        });
        if next == Next::Done {
            let shared = Arc::clone(&self.controller.patching.shared);
            self.controller.child.collect_later(&shared);
        }
        liveness.ends_step();
        next
    }
}

impl<E> ControlTask<E> {
    fn turn(&mut self) -> Next {
        if !self.has_begun {
            self.controller.begin();
            self.has_begun = true;
        }
        self.controller.step(&self.commands)
    }
}
