//! What a caller may not see of a live stream. Callers that rules of access let in may read calls,
//! and perhaps no arguments and no data of events. A group can also gain processes that the rules
//! do not cover.

use std::{collections::HashMap, io, sync::Arc, time::Duration};

use xray_trace::container::Redaction;

use super::{authorise::Authority, live::Encode};
use crate::{
    process::Registry,
    refusal::Refusal,
    store::{PublishedBlock, Source, StreamItem, TracedProcess},
};

/// An encoder that gets what the caller may see.
#[derive(Debug)]
pub(super) struct Redacted<E> {
    encoder: E,
    /// `None` for a caller that may see everything.
    redactor: Option<Redactor>,
}

/// Decides what a caller may see.
#[derive(Debug)]
struct Redactor {
    authority: Authority,
    registry: Registry,
    /// `None` for a process that the caller may not read.
    processes: HashMap<Source, Option<Redaction>>,
}

// === impl Redacted ===

impl<E> Redacted<E> {
    pub(super) fn new(encoder: E, authority: &Authority, registry: &Registry) -> Self {
        let redactor = authority.may_redact().then(|| Redactor {
            authority: authority.clone(),
            registry: registry.clone(),
            processes: HashMap::new(),
        });
        Self { encoder, redactor }
    }
}

impl<E: Encode> Encode for Redacted<E> {
    type Message = E::Message;

    fn begin(&mut self) -> Vec<Self::Message> {
        self.encoder.begin()
    }

    fn pause(&self) -> Option<Duration> {
        self.encoder.pause()
    }

    fn encode(&mut self, items: Vec<(Source, StreamItem)>) -> io::Result<Vec<Self::Message>> {
        let items = match &mut self.redactor {
            None => items,
            Some(redactor) => {
                let items = items.into_iter();
                items
                    .filter_map(|(source, item)| Some((source, redactor.item(source, item)?)))
                    .collect()
            }
        };
        self.encoder.encode(items)
    }

    fn failure(&mut self) -> Option<Refusal> {
        self.encoder.failure()
    }

    fn end(&mut self) -> io::Result<Vec<Self::Message>> {
        self.encoder.end()
    }
}

// === impl Redactor ===

impl Redactor {
    /// What the caller may see of an item.
    fn item(&mut self, source: Source, item: StreamItem) -> Option<StreamItem> {
        if let StreamItem::Process(process) = &item {
            let redaction = self.redaction(&**process);
            self.processes.insert(source, redaction);
        }
        // Losses of the reader belong to no process.
        let is_shared = matches!(item, StreamItem::Lost { .. });
        let redaction = match self.processes.get(&source) {
            Some(redaction) => *redaction,
            None => None,
        };
        match (item, redaction) {
            (item, _) if is_shared => Some(item),
            (_, None) => None,
            (item, Some(Redaction::NONE)) => Some(item),
            (StreamItem::Block(published), Some(redaction)) => {
                let closed = published.closed.redacted(redaction)?;
                Some(StreamItem::Block(PublishedBlock {
                    closed: Arc::new(closed),
                    ..published
                }))
            }
            (item, Some(_)) => Some(item),
        }
    }

    fn redaction(&self, process: &dyn TracedProcess) -> Option<Redaction> {
        let session = self.registry.get(process.pid())?;
        let start_time = process.process().start_time_ticks;
        (session.start_time() == start_time)
            .then(|| self.authority.redaction(&session))
            .flatten()
    }
}
