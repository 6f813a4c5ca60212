//! The process of a session, if xrayd started it: its exit status is collected when it ends.

use std::{process::Child, sync::Arc};

use super::shared::Shared;
use crate::{
    lock::lock,
    sys::{collect_child, try_collect_child},
};

/// A child process that is to be collected; `None` for a process that xrayd did not start, and
/// after the process was collected.
#[derive(Debug, Default)]
pub(crate) struct StartedChild(pub(crate) Option<Child>);

// === impl StartedChild ===

impl StartedChild {
    /// Publishes the exit status if the process has ended.
    pub(super) fn collect(&mut self, shared: &Shared) {
        let Some(child) = &mut self.0 else { return };
        match try_collect_child(child) {
            Ok(Some(status)) => {
                *lock(&shared.exit_status) = Some(status);
                self.0 = None;
            }
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot collect the exit status of a child process");
            }
        }
    }

    /// Collects a child that outlives its session on a thread of its own.
    pub(super) fn collect_later(&mut self, shared: &Arc<Shared>) {
        self.collect(shared);
        let Some(mut child) = self.0.take() else {
            return;
        };
        let shared = Arc::clone(shared);
        let reaper = std::thread::Builder::new()
            .name("reaper".to_owned())
            .spawn(move || {
                if let Ok(status) = collect_child(&mut child) {
                    *lock(&shared.exit_status) = Some(status);
                }
            });
        if let Err(error) = reaper {
            tracing::warn!(
                %error,
                "cannot start a thread that collects a child process; the child is not collected \
                 before the daemon ends"
            );
        }
    }
}
