//! Borrows a thread of the target for system calls: chooses it, stops it, and restores it.
//!
//! ```text
//!   seize ─► check owner ─► stop ─► recovery frame ─► our registers, signals blocked ─► the work
//!     ─► its own registers and mask ─► frame removed ─► release
//! ```
//!
//! Every wait is bounded. A thread may fail to return from a call of ours: its process is frozen,
//! or a lock of the kernel is held. Then the thread is released as it is when this OS thread ends.
//! Its recovery frame is still on its stack, so the thread restores itself when it returns
//! (`recovery_frame.rs`).

use std::{
    io,
    time::{Duration, Instant},
};

use nix::libc;

use super::{
    gadgets::Gadgets,
    recovery_frame::{NoRecoveryFrame, RecoveryFrame},
    remote::{Remote, RemoteError},
};
use crate::{
    pid::{TargetAddr, Tid},
    refusal::{Reason, Refusal, Result},
    sys::{
        Memory, PriorityBoost, XstateSizes,
        ptrace::{Gate, Seccomp, Seized, Sequences, Stopped, TraceError},
    },
    target::{Maps, Passage, Target, ThreadStatus, tracer_of},
};

/// Longest wait for the stop of one thread before the next one is tried: a thread may have to wait
/// for a processor.
const STOP_PATIENCE: Duration = Duration::from_millis(300);
/// Longest wait for the stop of the last thread to try.
const LAST_PATIENCE: Duration = Duration::from_secs(3);
/// Threads that are tried in one round.
const STOP_TRIES: usize = 5;
/// Rounds are repeated for this time, if a thread stood where it cannot be borrowed.
const UNSUITED_PATIENCE: Duration = Duration::from_millis(500);
const UNSUITED_PAUSE: Duration = Duration::from_millis(2);

/// The thread to borrow.
#[derive(Debug)]
pub(crate) enum Victim<'a> {
    /// Any thread that stops soon.
    Any,
    /// This thread.
    Thread(Tid),
    /// A thread that this OS thread has already stopped; it stays stopped.
    Held(&'a mut Stopped),
}

/// The facts that are gathered before a thread is stopped.
#[derive(Debug)]
pub(super) struct Lender<'a> {
    target: &'a Target,
    memory: &'a Memory,
    maps: &'a Maps,
    gadgets: Gadgets,
    sizes: XstateSizes,
}

/// The reason why the work was not done. Mappings that the work made and did not commit are
/// unmapped again.
#[derive(Debug)]
pub(super) enum BorrowError {
    /// A refusal with its reason.
    Refusal(Refusal),
    /// The kernel refused a system call.
    Remote(RemoteError),
}

impl From<RemoteError> for BorrowError {
    fn from(error: RemoteError) -> Self {
        Self::Remote(error)
    }
}

impl From<Refusal> for BorrowError {
    fn from(refusal: Refusal) -> Self {
        Self::Refusal(refusal)
    }
}

/// Result of the work, and the thread that stood still with the time that it did. `None` for a
/// thread that stays stopped.
pub(super) type Done<T> = (T, Option<(Tid, Duration)>);
type Tried<T> = std::result::Result<(T, (Tid, Duration)), Failure>;

#[derive(Debug)]
enum Failure {
    /// This thread must not be borrowed, or not at this moment.
    Unsuited(&'static str),
    /// The thread does not stop, or is gone.
    Unstoppable(TraceError),
    Final(BorrowError),
}

impl<E: Into<BorrowError>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Final(error.into())
    }
}

// === impl Lender ===

impl<'a> Lender<'a> {
    /// Finds everything that a borrowed thread needs, so that the thread stands still only for its
    /// calls.
    pub(super) fn find(target: &'a Target, memory: &'a Memory, maps: &'a Maps) -> Result<Self> {
        let gadgets = Gadgets::find(target, memory, maps).ok_or_else(|| {
            let message = format!(
                "process {} has no syscall instruction that xrayd can use",
                target.pid()
            );
            Refusal::new(Reason::Io, message)
        })?;
        Ok(Self {
            target,
            memory,
            maps,
            gadgets,
            sizes: XstateSizes::of_this_processor(),
        })
    }

    /// Runs `work` with a stopped thread.
    pub(super) fn acquire<T: Send>(
        &self,
        victim: &mut Victim<'_>,
        work: impl Fn(&mut Remote<'_>) -> std::result::Result<T, BorrowError> + Sync,
    ) -> std::result::Result<Done<T>, BorrowError> {
        let wanted = match victim {
            Victim::Held(thread) => {
                // Without a recovery frame: the program has a breakpoint of ours in its text, so it
                // does not outlive its tracer anyway.
                let done = self.put_to_work(thread, self.seccomp(thread.tid())?, None, &work)?;
                return Ok((done, None));
            }
            Victim::Thread(tid) => Some(*tid),
            Victim::Any => None,
        };
        // On an OS thread of its own: when it ends, the kernel releases every thread that it may
        // still trace. Threads that did not stop in time are among them.
        let pid = self.target.pid();
        let tried = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name(format!("borrow-{pid}"));
            let thread = thread.spawn_scoped(scope, || {
                // The stopped thread waits whenever this one does.
                let _urgent = PriorityBoost::begin();
                match wanted {
                    Some(tid) => self.borrow(tid, LAST_PATIENCE, &work),
                    None => self.borrow_any(&work),
                }
            });
            let thread = thread.map_err(|error| Refusal::from_io(pid, "start a thread", &error))?;
            Ok::<_, Refusal>(thread.join())
        })?;
        match tried {
            Ok(Ok((done, stopped))) => Ok((done, Some(stopped))),
            Ok(Err(failure)) => Err(self.explain(failure)),
            Err(_) => {
                let message = format!("process {pid}: a bug in xrayd while it borrowed a thread");
                Err(Refusal::new(Reason::Io, message).into())
            }
        }
    }

    /// Tries the threads in turn, and tries those again that only stood at an unsuitable place.
    fn borrow_any<T>(
        &self,
        work: &impl Fn(&mut Remote<'_>) -> std::result::Result<T, BorrowError>,
    ) -> Tried<T> {
        let since = Instant::now();
        loop {
            let mut last = None;
            let mut threads = self.target.stoppable_threads();
            threads.truncate(STOP_TRIES);
            let count = threads.len();
            for (index, tid) in threads.into_iter().enumerate() {
                let patience = match index + 1 == count {
                    true => LAST_PATIENCE,
                    false => STOP_PATIENCE,
                };
                match self.borrow(tid, patience, work) {
                    Err(failure @ Failure::Unsuited(_)) => last = Some(failure),
                    // Another wait for it would take as long.
                    Err(failure @ Failure::Unstoppable(_)) => last = last.or(Some(failure)),
                    tried => return tried,
                }
            }
            match last {
                Some(Failure::Unsuited(_)) if since.elapsed() < UNSUITED_PATIENCE => {
                    std::thread::sleep(UNSUITED_PAUSE);
                }
                Some(failure) => return Err(failure),
                None if self.target.has_exited() => return Err(self.target.exited().into()),
                None => {
                    let message = format!(
                        "process {}: every thread sleeps uninterruptibly",
                        self.target.pid()
                    );
                    return Err(Refusal::new(Reason::StopTimeout, message).into());
                }
            }
        }
    }

    /// Stops a thread, borrows it, and releases it.
    fn borrow<T>(
        &self,
        tid: Tid,
        patience: Duration,
        work: &impl Fn(&mut Remote<'_>) -> std::result::Result<T, BorrowError>,
    ) -> Tried<T> {
        let target = self.target;
        let seized = Seized::seize(tid).map_err(|error| self.not_seized(tid, error))?;
        // From here on no other thread can get this id. Another thread may have got it since the
        // listing (P18).
        target.check_owner()?;
        if target.has_exited() || !target.has_thread(tid) {
            return Err(Failure::Unstoppable(TraceError::Gone(tid)));
        }
        let seccomp = self.seccomp(tid)?;
        let mut thread = seized.interrupt(patience).map_err(Failure::Unstoppable)?;
        // The process may have executed another program since the checks, also a program of another
        // user. While the thread stands still it does not.
        if !self.gadgets.are_there(self.memory) {
            return Err(Failure::Unsuited("in another program than before"));
        }
        target.check_owner()?;
        if thread.registers().cs != 0x33 {
            let message = format!("process {}: thread {tid} runs 32-bit code", target.pid());
            return Err(Refusal::new(Reason::Not64Bit, message).into());
        }
        self.check_place(&thread)?;
        let frame = self.push_recovery_frame(&thread)?;
        let done = self.put_to_work(&mut thread, seccomp, frame, work);
        let released = thread.release();
        // The error of the work explains more than the error of the release.
        let done = done?;
        let time = released.map_err(|error| trace_refusal(target, &error))?;
        Ok((done, (tid, time)))
    }

    /// Checks that the stopped thread can be borrowed where it stands.
    fn check_place(&self, thread: &Stopped) -> std::result::Result<(), Failure> {
        if thread.dispatches_calls() {
            return Err(Failure::Unsuited(
                "in code whose system calls raise a signal instead (syscall user dispatch)",
            ));
        }
        let is_in_call = thread.registers().orig_rax.cast_signed() >= 0;
        match Restart::of(is_in_call, || thread.sequences()) {
            Restart::Outside => Ok(()),
            Restart::Unknown => Err(Failure::Unsuited(
                "outside of system calls, where a kernel before 5.13 does not show whether it is \
                 in a restartable sequence",
            )),
            Restart::Perhaps(place) if is_covered(self.memory, place, thread) => {
                Err(Failure::Unsuited("in a restartable sequence"))
            }
            Restart::Perhaps(_) => Ok(()),
        }
    }

    fn push_recovery_frame(
        &self,
        thread: &Stopped,
    ) -> std::result::Result<Option<RecoveryFrame>, Failure> {
        let Some(way_back) = self.gadgets.way_back else {
            tracing::debug!(
                "no rt_sigreturn in the target: the thread cannot restore itself if xrayd dies"
            );
            return Ok(None);
        };
        match RecoveryFrame::push(thread, self.memory, self.maps, way_back, &self.sizes) {
            Ok(frame) => Ok(Some(frame)),
            Err(NoRecoveryFrame::ShadowStack) => Ok(None),
            Err(NoRecoveryFrame::StackRoom) => {
                Err(Failure::Unsuited("on a signal's or a coroutine's stack"))
            }
            Err(NoRecoveryFrame::Trace(error)) => Err(Failure::Unstoppable(error)),
        }
    }

    /// Borrows the stopped thread for `work`, and restores it.
    fn put_to_work<T>(
        &self,
        thread: &mut Stopped,
        seccomp: Seccomp,
        frame: Option<RecoveryFrame>,
        work: &impl Fn(&mut Remote<'_>) -> std::result::Result<T, BorrowError>,
    ) -> std::result::Result<T, BorrowError> {
        let gate = Gate {
            instruction: self.gadgets.syscall,
            stack: frame.as_ref().map(RecoveryFrame::stack),
        };
        let done = match thread.prepare(seccomp, gate) {
            Ok(()) => work(&mut Remote::new(thread, gate.instruction)),
            Err(error) => Err(RemoteError::from(error).into()),
        };
        thread
            .restore()
            .map_err(|error| trace_refusal(self.target, &error))?;
        if let Some(frame) = frame
            && let Err(error) = frame.remove(self.memory)
        {
            tracing::debug!(
                %error,
                "cannot restore the memory below the stack of a borrowed thread"
            );
        }
        done
    }

    /// The handling of the thread's seccomp filters.
    fn seccomp(&self, tid: Tid) -> Result<Seccomp> {
        let pid = self.target.pid();
        let status = ThreadStatus::read(pid, tid).ok_or_else(|| self.target.exited())?;
        match Passage::of(pid, tid, &status) {
            Passage::Suspended => Ok(Seccomp::Suspended),
            Passage::Unfiltered | Passage::Shared => Ok(Seccomp::Kept),
            Passage::Closed(obstacle) => {
                let message = format!(
                    "process {pid}: thread {tid} is under a seccomp filter that xrayd cannot \
                     suspend: {obstacle}"
                );
                Err(Refusal::new(Reason::SeccompFilter, message))
            }
        }
    }

    /// The failure of a thread that cannot be seized.
    fn not_seized(&self, tid: Tid, error: TraceError) -> Failure {
        let target = self.target;
        // The kernel returns EPERM for a thread that is just ending, and to a second tracer.
        if !target.has_thread(tid) {
            return Failure::Unstoppable(TraceError::Gone(tid));
        }
        let tracer = target
            .live_thread()
            .ok()
            .and_then(|tid| tracer_of(target.pid(), tid));
        match (error, tracer) {
            (TraceError::Failed { .. }, Some(tracer)) => Refusal::new(
                Reason::ForeignTracer,
                format!("process {} is traced by process {tracer}", target.pid()),
            )
            .into(),
            (error @ TraceError::Failed { .. }, None) => trace_refusal(target, &error).into(),
            (error @ (TraceError::Gone(_) | TraceError::Timeout(..) | TraceError::Lost(_)), _) => {
                Failure::Unstoppable(error)
            }
        }
    }

    fn explain(&self, failure: Failure) -> BorrowError {
        match failure {
            Failure::Final(error) => error,
            Failure::Unstoppable(error) => trace_refusal(self.target, &error).into(),
            Failure::Unsuited(where_) => {
                let message = format!(
                    "process {}: xrayd can borrow no thread: whenever it stopped one, the thread \
                     was {where_}",
                    self.target.pid()
                );
                Refusal::new(Reason::StopTimeout, message).into()
            }
        }
    }
}

/// Whether a thread was stopped in a restartable sequence (rseq(2)). The kernel would forget the
/// interruption during the borrowed call, and the sequence would go on as if it had not been
/// interrupted.
#[derive(Debug, PartialEq, Eq)]
enum Restart {
    /// The thread is in no sequence.
    Outside,
    /// The kernel does not report it.
    Unknown,
    /// The thread is in a sequence if the sequence's descriptor covers the instruction. The address
    /// of the descriptor stands at this address.
    Perhaps(u64),
}

// === impl Restart ===

impl Restart {
    /// A thread in a system call is in no sequence: sequences make no calls.
    fn of(is_in_call: bool, sequences: impl FnOnce() -> Sequences) -> Self {
        if is_in_call {
            return Self::Outside;
        }
        match sequences() {
            Sequences::Unused => Self::Outside,
            Sequences::Untold => Self::Unknown,
            Sequences::At(place) => Self::Perhaps(place),
        }
    }
}

fn is_covered(memory: &Memory, place: u64, thread: &Stopped) -> bool {
    match memory.read_u64(TargetAddr(place)) {
        Ok(0) => false,
        Ok(descriptor) => covers(memory, descriptor, thread.registers().rip).unwrap_or(true),
        Err(_) => true,
    }
}

/// The kernel's own rule, `in_rseq_cs` in kernel/rseq.c. Programs leave the address of the
/// descriptor in place when a sequence is done, so the address alone proves nothing. `struct
/// rseq_cs` holds the address of the first instruction at 8, and at 16 the bytes from there to the
/// end of the last one.
fn covers(memory: &Memory, descriptor: u64, rip: u64) -> io::Result<bool> {
    let start = memory.read_u64(TargetAddr(descriptor.wrapping_add(8)))?;
    let length = memory.read_u64(TargetAddr(descriptor.wrapping_add(16)))?;
    Ok(rip.wrapping_sub(start) < length)
}

/// The refusal that a ptrace error means for the client.
pub(super) fn trace_refusal(target: &Target, error: &TraceError) -> Refusal {
    let (reason, why) = match error {
        TraceError::Gone(_) => (Reason::TargetExited, String::new()),
        TraceError::Timeout(..) | TraceError::Lost(_) => (Reason::StopTimeout, String::new()),
        TraceError::Failed { source, .. } => {
            let reason = match source.raw_os_error() {
                Some(libc::EPERM) => Reason::Permission,
                _ => Reason::Io,
            };
            (reason, format!(": {source}"))
        }
    };
    Refusal::new(reason, format!("process {}: {error}{why}", target.pid()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Before Linux 5.13 the kernel does not report where a thread's sequences are described.
    #[test]
    fn a_thread_is_borrowed_where_it_is_known_to_be_in_no_restartable_sequence() {
        let rows = [
            (true, Sequences::Untold, Restart::Outside),
            (true, Sequences::Unused, Restart::Outside),
            (true, Sequences::At(8), Restart::Outside),
            (false, Sequences::Untold, Restart::Unknown),
            (false, Sequences::Unused, Restart::Outside),
            (false, Sequences::At(8), Restart::Perhaps(8)),
        ];
        for (is_in_call, sequences, expected) in rows {
            let found = Restart::of(is_in_call, || sequences);
            assert_eq!(found, expected, "{is_in_call} {sequences:?}");
        }
    }
}
