//! A record of a log, as LLVM's library keeps it in memory.

use xray_trace::llvm::yaml::Kind;

/// A record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    /// 0 for calls; the type of the last typed event of the thread, once there was one.
    pub(super) record_type: u16,
    /// The processor.
    pub(super) cpu: u16,
    /// The event.
    pub(super) kind: Kind,
    /// The function; of an event the last one of the thread.
    pub(super) function: i32,
    /// The counter.
    pub(super) tsc: u64,
    /// The thread.
    pub(super) tid: u32,
    /// The process, 0 if the log does not have it.
    pub(super) pid: u32,
    /// The arguments of a call.
    pub(super) args: Vec<u64>,
    /// The data of an event.
    pub(super) data: Vec<u8>,
}

/// How a record changes the stack of its thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// A function is entered.
    Enter,
    /// A function is left.
    Exit,
    /// The record is an event.
    None,
}

// === impl Record ===

impl Default for Record {
    fn default() -> Self {
        Self {
            record_type: 0,
            cpu: 0,
            kind: Kind::Enter,
            function: 0,
            tsc: 0,
            tid: 0,
            pid: 0,
            args: Vec::new(),
            data: Vec::new(),
        }
    }
}

impl Record {
    /// How the record changes the stack.
    pub(super) fn step(&self) -> Step {
        match self.kind {
            Kind::Enter | Kind::EnterArg => Step::Enter,
            Kind::Exit | Kind::TailExit => Step::Exit,
            Kind::Custom | Kind::Typed => Step::None,
        }
    }

    /// LLVM's word for the kind in messages.
    pub(super) fn kind_name(&self) -> &'static str {
        match self.kind {
            Kind::Enter => "enter",
            Kind::EnterArg => "enter-arg",
            Kind::Exit => "exit",
            Kind::TailExit => "tail-exit",
            Kind::Custom => "custom-event",
            Kind::Typed => "typed-event",
        }
    }
}
