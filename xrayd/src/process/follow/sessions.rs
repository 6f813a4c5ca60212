//! The sessions of a daemon, as the search uses them. The search does not own them.

use std::sync::Arc;

use crate::{
    pid::Pid,
    process::{attach_options::AttachOptions, session::Session},
    refusal::Result,
    target::Objects,
};

/// The sessions of a daemon.
pub(crate) trait Sessions {
    /// The files that all sessions share.
    fn objects(&self) -> &Objects;

    /// True if a process has a session, and has not ended.
    fn is_attached(&self, pid: Pid) -> bool;

    /// Attaches to a process that comes from another one, for that one's group.
    ///
    /// # Errors
    /// The process cannot be attached to, or another attach came first.
    fn attach_followed(&self, pid: Pid, options: AttachOptions) -> Result<Arc<Session>>;

    /// Ends a session that its group did not adopt.
    ///
    /// # Errors
    /// The memory of the process could not be written. The session is over in any case.
    fn end_followed(&self, session: &Arc<Session>) -> Result<()>;

    /// Gives every living process its share of retained events.
    fn share_retained(&self);
}
