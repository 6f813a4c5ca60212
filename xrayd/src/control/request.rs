//! The requests of a session to its controller.

use std::sync::{Arc, mpsc::SyncSender};

use xray_trace::{instr_map::CompiledSelection, model::FunctionId};

use super::{
    patterns::Patterns,
    rules::{RuleEffect, Rules},
    settings::PreparedUpdate,
};
use crate::{
    refusal::Result,
    target::Indexes,
    types::{DetachReport, LeaseId, Run, Settings, ToggleReport, ToggleTo},
};

/// A request of the session to its controller.
#[derive(Debug)]
pub(crate) enum Command {
    Toggle {
        request: Box<ToggleRequest>,
        answer: SyncSender<Result<ToggleReport>>,
    },
    Release {
        from: LeaseId,
        answer: SyncSender<Result<ToggleReport>>,
    },
    Begin {
        rules: Rules,
        /// Functions to switch on in the modules `of`. For modules that came later the rules
        /// decide.
        effect: RuleEffect,
        of: Indexes,
        answer: SyncSender<Result<()>>,
    },
    Look {
        answer: SyncSender<Result<()>>,
    },
    /// Changes settings. The answer has the settings before.
    Update {
        prepared: Box<PreparedUpdate>,
        answer: SyncSender<Result<Settings>>,
    },
    /// Has events recorded if a reader waits for them.
    Settle {
        answer: SyncSender<Result<()>>,
    },
    NameTypes {
        answer: SyncSender<Result<()>>,
    },
    Resume {
        answer: SyncSender<Result<()>>,
    },
    Detach {
        answer: SyncSender<Result<DetachReport>>,
    },
    /// Ends the session, and leaves its process as it is for a later daemon.
    Leave {
        answer: SyncSender<Result<()>>,
    },
}

/// A request to enable or disable functions.
#[derive(Debug)]
pub(crate) struct ToggleRequest {
    /// The selection. It also holds for libraries that are loaded later.
    pub(crate) patterns: Arc<Patterns>,
    /// The selection for modules that came after `of`.
    pub(crate) later: Option<CompiledSelection>,
    /// The functions that it matches in the modules `of`.
    pub(crate) ids: Vec<FunctionId>,
    pub(crate) of: Indexes,
    pub(crate) to: ToggleTo,
    pub(crate) run: Run,
}
