//! Sums of calls of one process that a client asks for.

use std::sync::Arc;

use super::session::Session;
use crate::{
    refusal::Result,
    store::{Ask, ProfileSums},
    types::Mode,
};

/// Sums of calls that are being made of a process.
#[derive(Debug)]
pub struct Profiling {
    session: Arc<Session>,
    number: u64,
}

// === impl Profiling ===

impl Profiling {
    /// Begins sums of calls. They are made until the returned value is dropped.
    ///
    /// # Errors
    /// The process or its files do not answer.
    pub fn begin(session: &Arc<Session>) -> Result<Self> {
        let number = session.source.output.profiles.number();
        // In flight, the rings are read from now on. The events in them were recorded before.
        let output = &session.source.output;
        let _coming = (output.mode() != Mode::Profile).then(|| output.expect_reader());
        session.source.control.profile(Ask::Begin(number))?;
        Ok(Self {
            session: Arc::clone(session),
            number,
        })
    }

    /// The process.
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// The sums of calls since [`Self::begin`].
    ///
    /// # Errors
    /// As [`Self::begin`].
    pub fn finish(self) -> Result<ProfileSums> {
        self.end()
    }

    /// Ends the sums, and returns them. Later calls return none.
    ///
    /// # Errors
    /// As [`Self::begin`].
    pub(super) fn end(&self) -> Result<ProfileSums> {
        let sums = self.session.source.control.profile(Ask::End(self.number))?;
        Ok(sums.unwrap_or_default())
    }
}

impl Drop for Profiling {
    fn drop(&mut self) {
        // After `finish` there are no sums to end.
        self.session
            .source
            .output
            .profiles
            .answer(Ask::End(self.number));
    }
}
