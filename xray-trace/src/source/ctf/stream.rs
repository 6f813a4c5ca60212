//! A file of packets: reads them one by one, and decodes their events.

use std::fs::File;
use std::io::{self, Read as _};

use super::decode::{Bad, Bits, Fields};
use super::types::{Metadata, Stream};
use crate::source::OpenError;

/// The number at the begin of each packet.
const MAGIC: u32 = 0xc1fc_1fc1;
/// The bytes of a packet in which its size is found.
const HEAD: usize = 1 << 16;
/// The most bytes of a packet.
const MOST_BYTES: usize = 1 << 28;

/// A file of packets.
#[derive(Debug)]
pub(super) struct StreamFile<'m> {
    file: File,
    name: String,
    described: &'m Metadata,
    /// The offset of the packet in the file.
    offset: u64,
    /// Bytes of the file from `offset` on: the packet, and perhaps some of the next one.
    bytes: Vec<u8>,
    /// The size of the packet in bytes; 0 before the first one.
    size: usize,
    /// The end of the packet's content, in bits.
    content: usize,
    /// The next event of the packet, in bits.
    at: usize,
    /// The time of the latest event.
    now: u64,
    /// The current event: its begin in bits, and its time.
    current: Option<(usize, u64)>,
}

/// An event and its fields.
#[derive(Debug)]
pub(super) struct Decoded<'a> {
    pub(super) name: &'a str,
    pub(super) time: u64,
    pub(super) fields: Fields<'a>,
}

// === impl StreamFile ===

impl<'m> StreamFile<'m> {
    pub(super) fn new(file: File, name: &str, described: &'m Metadata) -> Self {
        Self {
            file,
            name: name.to_owned(),
            described,
            offset: 0,
            bytes: Vec::new(),
            size: 0,
            content: 0,
            at: 0,
            now: 0,
            current: None,
        }
    }

    /// The time of the current event.
    pub(super) fn time(&self) -> Option<u64> {
        self.current.map(|(_, time)| time)
    }

    /// Goes to the next event. Afterwards there is none if the file has ended.
    ///
    /// # Errors
    ///
    /// The file cannot be read. Or a packet is damaged, and the next call goes on with the next
    /// packet.
    pub(super) fn advance(&mut self) -> Result<(), OpenError> {
        self.current = None;
        while self.at >= self.content {
            if !self.next_packet()? {
                return Ok(());
            }
        }
        let begun = self.at;
        match self.decoded(begun, self.now) {
            Ok((event, end)) if end > begun => {
                let time = event.time;
                (self.current, self.at, self.now) = (Some((begun, time)), end, time);
                Ok(())
            }
            Ok(_) => Err(self.damaged("an event has no size")),
            Err(why) => Err(self.damaged(why)),
        }
    }

    /// The current event.
    pub(super) fn event(&self) -> Option<Decoded<'_>> {
        let (begun, time) = self.current?;
        let (event, _) = self.decoded(begun, time).ok()?;
        Some(event)
    }

    /// Leaves the rest of the packet out.
    fn damaged(&mut self, why: &str) -> OpenError {
        let error = OpenError::CtfPacket {
            file: self.name.clone(),
            offset: self.offset,
            why: why.to_owned(),
        };
        self.at = self.content;
        error
    }

    /// Reads the next packet. False at the end of the file.
    fn next_packet(&mut self) -> Result<bool, OpenError> {
        let size = self.size.min(self.bytes.len());
        self.bytes.drain(..size);
        self.offset += size as u64;
        (self.size, self.content, self.at) = (0, 0, 0);
        self.fill(HEAD)?;
        if self.bytes.is_empty() {
            return Ok(false);
        }
        let sizes = self.sizes();
        let (content, packet) = match sizes {
            Ok(sizes) => sizes,
            Err(why) => {
                // Without a size, the rest of the file is lost.
                self.size = usize::MAX;
                let error = self.damaged(why);
                self.bytes.clear();
                io::copy(&mut self.file, &mut io::sink())?;
                return Err(error);
            }
        };
        // A packet without a size takes the rest of the file.
        let wanted = packet.map_or(MOST_BYTES, |bits| bits.div_ceil(8).min(MOST_BYTES));
        self.fill(wanted)?;
        self.size = packet.map_or(usize::MAX, |bits| bits.div_ceil(8).max(1));
        let present = self.bytes.len().min(self.size) * 8;
        self.content = content.unwrap_or(present).min(present);
        match self.head() {
            Ok((at, now)) => (self.at, self.now) = (at, now),
            Err(bad) => return Err(self.damaged(bad.why())),
        }
        if content.is_some_and(|content| content > present) {
            // The events that are there count.
            self.content = present;
        }
        Ok(true)
    }

    /// Reads until so many bytes of the packet are there, or the file ends.
    fn fill(&mut self, wanted: usize) -> io::Result<()> {
        let missing = wanted.saturating_sub(self.bytes.len()) as u64;
        let file = &mut self.file;
        file.take(missing).read_to_end(&mut self.bytes)?;
        Ok(())
    }

    /// The sizes of the packet's content and of the packet, in bits, if it has them.
    fn sizes(&self) -> Result<(Option<usize>, Option<usize>), &'static str> {
        let mut fields = Fields::default();
        let mut bits = Bits::new(&self.bytes, usize::MAX, 0);
        let stream = self.begin(&mut bits, &mut fields).map_err(Bad::why)?;
        if fields
            .number("magic")
            .is_some_and(|magic| magic != u64::from(MAGIC))
        {
            return Err("it is no packet: its number is wrong");
        }
        if stream.is_none() {
            return Err("the metadata does not describe its stream");
        }
        let size = |name| {
            let number = fields.number(name);
            number.map(|bits| usize::try_from(bits).unwrap_or(usize::MAX))
        };
        let (content, packet) = (size("content_size"), size("packet_size"));
        match (content, packet) {
            (Some(content), Some(packet)) if content > packet => {
                Err("its content is larger than the packet")
            }
            (content, packet) => Ok((content.or(packet), packet.or(content))),
        }
    }

    /// Decodes the header and the context of a packet. `None` for an unknown stream.
    fn begin<'a>(
        &'a self,
        bits: &mut Bits<'a>,
        fields: &mut Fields<'a>,
    ) -> Result<Option<&'m Stream>, Bad> {
        let described = self.described;
        bits.decode_any(described.packet_header.as_ref(), fields)?;
        let id = fields.number("stream_id").unwrap_or(0);
        let mut streams = described.streams.iter();
        let Some(stream) = streams.find(|stream| stream.id == id) else {
            return Ok(None);
        };
        bits.decode_any(stream.packet_context.as_ref(), fields)?;
        if let Some(begin) = fields.number("timestamp_begin") {
            bits.now = begin;
        }
        Ok(Some(stream))
    }

    /// The first bit behind the packet's context, and the time of its begin.
    fn head(&self) -> Result<(usize, u64), Bad> {
        let mut bits = Bits::new(&self.bytes, usize::MAX, 0);
        self.begin(&mut bits, &mut Fields::default())?;
        Ok((bits.position(), bits.now))
    }

    /// Decodes the event at this bit. `now` is the time of the event before it, or its own. Returns
    /// it, and the bit behind it.
    fn decoded(&self, at: usize, now: u64) -> Result<(Decoded<'_>, usize), &'static str> {
        let mut fields = Fields::default();
        let mut bits = Bits::new(&self.bytes, usize::MAX, 0);
        let stream = self.begin(&mut bits, &mut fields).map_err(Bad::why)?;
        let stream = stream.ok_or("the metadata does not describe its stream")?;
        bits.go_to(at, self.content);
        bits.now = now;
        let before = fields.len();
        let header = bits.decode_any(stream.event_header.as_ref(), &mut fields);
        header.map_err(Bad::why)?;
        // The packet may have a field of this name, too.
        let id = fields.number_behind(before, "id").unwrap_or(0);
        let event = self.described.class(stream.id, id);
        let event = event.ok_or("the metadata does not describe an event")?;
        for of in [&stream.event_context, &event.context, &event.fields] {
            let decoded = bits.decode_any(of.as_ref(), &mut fields);
            decoded.map_err(Bad::why)?;
        }
        let decoded = Decoded {
            name: &event.name,
            time: bits.now,
            fields,
        };
        Ok((decoded, bits.position()))
    }
}
