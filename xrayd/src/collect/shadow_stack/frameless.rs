//! The open calls for which a shadow stack has no room. They are counted, and have no frames. They
//! are within all calls that have one.

/// The greatest distance between neighbours in a segment. Frames are smaller as a rule, and other
/// stacks are further away. A call with a greater frame begins a segment, too, which is left like a
/// handler's.
pub(super) const NEAR: u64 = 16 << 10;

/// The open calls of a thread that have no frame.
#[derive(Debug, Default)]
pub(super) struct Frameless {
    /// Their number. While it is not 0, no frame is added.
    calls: u64,
    /// The place of the outermost of them.
    outermost: u64,
    /// True if they are suspected.
    suspected: bool,
    /// True if there were such calls since the last call of `take_seen`.
    seen: bool,
}

// === impl Frameless ===

impl Frameless {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.calls == 0
    }

    #[inline]
    pub(super) fn len(&self) -> u64 {
        self.calls
    }

    /// True if there were such calls since the last call of this.
    pub(super) fn take_seen(&mut self) -> bool {
        let open = !self.is_empty();
        std::mem::replace(&mut self.seen, open)
    }

    /// Adds a call at `sp`.
    #[inline]
    pub(super) fn add(&mut self, sp: u64) {
        if self.is_empty() {
            self.outermost = sp;
        }
        self.calls = self.calls.saturating_add(1);
        self.seen = true;
    }

    /// Ends all of them. Returns their number.
    #[inline]
    pub(super) fn take(&mut self) -> u64 {
        match self.calls {
            0 => 0,
            _ => std::mem::take(&mut self.calls),
        }
    }

    /// Ends the innermost of them.
    pub(super) fn pop(&mut self) {
        self.calls = self.calls.saturating_sub(1);
    }

    /// Ends them when no other call is open. They are over if the stack stands where the outermost
    /// of them stands, or at least `above` higher. Returns the number of calls that were left.
    #[inline]
    pub(super) fn leave(&mut self, sp: u64, above: u64) -> u64 {
        let higher = sp.wrapping_sub(self.outermost);
        match (above..NEAR).contains(&higher) {
            true => self.take(),
            false => 0,
        }
    }

    /// Handles an exit with the stack at `sp` when no other call is open. It is the exit of the
    /// outermost call, or of a call around or within it. Returns the number of calls that had ended
    /// before.
    pub(super) fn exit(&mut self, sp: u64) -> u64 {
        match self.leave(sp, 0) {
            0 => {
                self.pop();
                0
            }
            left if sp == self.outermost => left - 1,
            left => left,
        }
    }

    /// Suspects them.
    pub(super) fn suspect(&mut self) {
        self.suspected = !self.is_empty();
    }

    #[inline]
    pub(super) fn are_suspected(&self) -> bool {
        self.suspected
    }

    /// Ends them if they are suspected. Returns the number of ended calls.
    pub(super) fn take_suspects(&mut self) -> u64 {
        match std::mem::take(&mut self.suspected) {
            true => self.take(),
            false => 0,
        }
    }

    /// Forgets them.
    pub(super) fn clear(&mut self) {
        self.calls = 0;
        self.suspected = false;
    }
}
