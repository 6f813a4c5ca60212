//! The order that the records of a buffer must have: the state machine of LLVM's block verifier. It
//! reads no fields of records.
//!
//! It follows `llvm/lib/XRay/BlockVerifier.cpp` of LLVM 19:
//!
//! | after | allowed |
//! |---|---|
//! | (nothing) | BufferExtents, NewBuffer |
//! | BufferExtents | NewBuffer |
//! | NewBuffer | WallClockTime |
//! | WallClockTime | PIDEntry, NewCPUId |
//! | PIDEntry | NewCPUId |
//! | NewCPUId, TSCWrap, CustomEvent, TypedEvent | NewCPUId, TSCWrap, CustomEvent, TypedEvent, Function, EndOfBuffer |
//! | Function, CallArg | the same, and CallArg |
//! | EndOfBuffer | any record but NewBuffer; it is ignored |
//!
//! A buffer may end after each record from NewCPUId on. An argument behind an exit is allowed here;
//! [`Events`](super::Events) rejects it.

use std::fmt;

use super::Kind;

/// The last record of a buffer so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum State {
    /// There was no record.
    #[default]
    Unknown,
    /// The last record had this kind.
    After(Kind),
}

/// Two records that must not follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("invalid transition from {from} to {to}")]
pub struct Invalid {
    /// The first record.
    pub from: State,
    /// The second record.
    pub to: Kind,
}

/// A buffer that ends with a record that cannot end it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("invalid terminal condition {last}, malformed block")]
pub struct InvalidEnd {
    /// The last record.
    pub last: State,
}

/// Checks the records of one buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Verifier {
    state: State,
}

const EVENTS: u16 = bit(Kind::NewCpuId)
    | bit(Kind::TscWrap)
    | bit(Kind::CustomEvent)
    | bit(Kind::TypedEvent)
    | bit(Kind::Function)
    | bit(Kind::EndOfBuffer);

const fn bit(kind: Kind) -> u16 {
    1 << kind as u16
}

/// The records that may follow a state.
#[inline]
const fn successors(state: State) -> u16 {
    let State::After(kind) = state else {
        return bit(Kind::BufferExtents) | bit(Kind::NewBuffer);
    };
    match kind {
        Kind::BufferExtents => bit(Kind::NewBuffer),
        Kind::NewBuffer => bit(Kind::WallClockTime),
        Kind::WallClockTime => bit(Kind::PidEntry) | bit(Kind::NewCpuId),
        Kind::PidEntry => bit(Kind::NewCpuId),
        Kind::NewCpuId | Kind::TscWrap | Kind::CustomEvent | Kind::TypedEvent => EVENTS,
        Kind::Function | Kind::CallArg => EVENTS | bit(Kind::CallArg),
        Kind::EndOfBuffer => 0,
    }
}

// === impl Verifier ===

impl Verifier {
    /// The last record.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// Takes the next record.
    ///
    /// # Errors
    ///
    /// If it must not follow the last record; the state is unchanged then.
    #[inline]
    pub fn step(&mut self, to: Kind) -> Result<(), Invalid> {
        if self.state == State::After(Kind::EndOfBuffer) && to != Kind::NewBuffer {
            return Ok(());
        }
        if successors(self.state) & bit(to) == 0 {
            let from = self.state;
            return Err(Invalid { from, to });
        }
        self.state = State::After(to);
        Ok(())
    }

    /// Takes the next record at any place.
    pub(super) fn force(&mut self, to: Kind) {
        self.state = State::After(to);
    }

    /// Ends the buffer, and prepares for the next one.
    ///
    /// # Errors
    ///
    /// If the buffer must not end here.
    pub fn finish(&mut self) -> Result<(), InvalidEnd> {
        match std::mem::take(&mut self.state) {
            State::After(
                Kind::NewCpuId
                | Kind::TscWrap
                | Kind::CustomEvent
                | Kind::TypedEvent
                | Kind::Function
                | Kind::CallArg
                | Kind::EndOfBuffer,
            ) => Ok(()),
            last => Err(InvalidEnd { last }),
        }
    }
}

// === impl State ===

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.pad("Unknown"),
            Self::After(kind) => kind.fmt(f),
        }
    }
}
