//! What a caller may not see of a live stream. Callers that rules of access let in may read calls,
//! and perhaps no arguments and no data of events.

use std::{io, sync::Arc, time::Duration};

use xray_trace::container::Redaction;

use super::live::Encode;
use crate::{
    refusal::Refusal,
    store::{PublishedBlock, Source, StreamItem},
};

/// An encoder that gets what the caller may see.
#[derive(Debug)]
pub(super) struct Redacted<E> {
    encoder: E,
    redaction: Redaction,
}

// === impl Redacted ===

impl<E> Redacted<E> {
    pub(super) fn new(encoder: E, redaction: Redaction) -> Self {
        Self { encoder, redaction }
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
        if self.redaction == Redaction::NONE {
            return self.encoder.encode(items);
        }
        let items = items.into_iter().filter_map(|(source, item)| match item {
            StreamItem::Block(published) => {
                let closed = published.closed.redacted(self.redaction)?;
                let published = PublishedBlock {
                    closed: Arc::new(closed),
                    ..published
                };
                Some((source, StreamItem::Block(published)))
            }
            item => Some((source, item)),
        });
        self.encoder.encode(items.collect())
    }

    fn failure(&mut self) -> Option<Refusal> {
        self.encoder.failure()
    }

    fn end(&mut self) -> io::Result<Vec<Self::Message>> {
        self.encoder.end()
    }
}
