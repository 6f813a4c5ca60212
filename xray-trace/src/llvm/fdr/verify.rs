//! The order that the records of a buffer must have: the state machine of LLVM's block verifier.
//!
//! As `llvm/lib/XRay/BlockVerifier.cpp` of LLVM 19:
//!
//! | behind | may stand |
//! |---|---|
//! | (nothing) | BufferExtents, NewBuffer |
//! | BufferExtents | NewBuffer |
//! | NewBuffer | WallClockTime |
//! | WallClockTime | PIDEntry, NewCPUId |
//! | PIDEntry | NewCPUId |
//! | NewCPUId, TSCWrap, CustomEvent, TypedEvent | NewCPUId, TSCWrap, CustomEvent, TypedEvent, Function, EndOfBuffer |
//! | Function, CallArg | the same, and CallArg |
//! | EndOfBuffer | anything, which is ignored, but no NewBuffer |
//!
//! A buffer may end behind each record from NewCPUId on. It says nothing of an argument behind an exit; that is left
//! to [`Events`](super::Events).

use std::fmt;

use super::Kind;

/// The last record of a buffer, as far as it has been read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum State {
    /// There was none.
    #[default]
    Unknown,
    /// A record of this kind.
    After(Kind),
}

/// Two records that may not stand in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("invalid transition from {from} to {to}")]
pub struct Invalid {
    /// The record in front.
    pub from: State,
    /// The record behind it.
    pub to: Kind,
}

/// A buffer that ends with a record that ends none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("invalid terminal condition {last}, malformed block")]
pub struct InvalidEnd {
    /// The last record.
    pub last: State,
}

/// Follows the records of one buffer.
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

/// What may stand behind a state.
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
    /// If it may not stand there; the state is then as before.
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

    /// Takes the next record wherever it stands.
    pub(super) fn force(&mut self, to: Kind) {
        self.state = State::After(to);
    }

    /// Ends the buffer and is ready for the next.
    ///
    /// # Errors
    ///
    /// If it may not end there.
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
