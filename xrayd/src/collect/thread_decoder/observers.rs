//! The observers of decoded events beside the readers of blocks: profiles and triggers.

use xray_trace::{
    analysis::Profiler,
    event_format::RecordedData,
    model::{FunctionId, Ticks},
};

use crate::collect::{shadow_stack::Exit, watch::Watch};

/// The observers of decoded events; `None` in the common case.
#[derive(Debug, Default)]
pub(super) struct Observers(pub(super) Option<Present>);

/// The observers of decoded events. At least one is there.
#[derive(Debug, Default)]
pub(super) struct Present {
    /// Present while events are added up.
    pub(super) profiler: Option<Profiler>,
    /// Present while triggers are armed.
    pub(super) watch: Option<Watch>,
}

// === impl Observers ===

impl Observers {
    /// Changes the observers.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut Present)) {
        let mut present = self.0.take().unwrap_or_default();
        change(&mut present);
        let anybody = present.profiler.is_some() || present.watch.is_some();
        self.0 = anybody.then_some(present);
    }

    pub(super) fn profiler(&mut self) -> Option<&mut Profiler> {
        self.0.as_mut()?.profiler.as_mut()
    }
}

// === impl Present ===

impl Present {
    /// A call begins, with which `depth` calls are open.
    #[inline]
    pub(super) fn enter(&mut self, function: FunctionId, at: u64, depth: u64) {
        if let Some(profiler) = &mut self.profiler {
            profiler.enter(function, at);
        }
        if let Some(watch) = &mut self.watch {
            watch.enter(function, Ticks(at), depth);
        }
    }

    /// An open call ends, or there is an unmatched exit. Then `depth` calls are open.
    #[inline]
    pub(super) fn exit(&mut self, function: FunctionId, at: u64, of: Exit, depth: u64) {
        match &mut self.profiler {
            Some(profiler) if of == Exit::Unmatched => {
                profiler.pass(at);
                profiler.unmatched_exit();
            }
            Some(profiler) => profiler.exit(function, at),
            None => {}
        }
        match &mut self.watch {
            Some(watch) if of == Exit::Innermost => watch.exit(function, Ticks(at), depth),
            Some(watch) => watch.close(depth),
            None => {}
        }
    }

    /// A user event with this data within `depth` calls. A typed event has a number.
    pub(super) fn user_event(
        &mut self,
        event: (Option<u16>, RecordedData<'_>),
        function: FunctionId,
        at: u64,
        depth: u64,
    ) {
        if let Some(profiler) = &mut self.profiler {
            profiler.pass(at);
        }
        if let Some(watch) = &mut self.watch {
            watch.user_event(event, function, Ticks(at), depth);
        }
    }

    pub(super) fn lose(&mut self, events: u64) {
        if let Some(profiler) = &mut self.profiler {
            profiler.lose(events);
        }
        if let Some(watch) = &mut self.watch {
            watch.close(0);
        }
    }

    /// Nothing is known of open calls any more.
    pub(super) fn end(&mut self) {
        if let Some(profiler) = &mut self.profiler {
            profiler.end();
        }
        if let Some(watch) = &mut self.watch {
            watch.close(0);
        }
    }
}
