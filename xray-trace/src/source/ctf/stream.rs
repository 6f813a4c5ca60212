//! A file of packets: reads them one by one, and decodes their events.

use std::fs::File;
use std::io::{self, Read as _};

use super::decode::{Bad, Bits, Fields};
use super::types::{Metadata, Stream};
use crate::source::OpenError;

/// The number at the begin of each packet.
const MAGIC: u32 = 0xc1fc_1fc1;
/// The bytes of a packet in which its header and context are found. xrayctl's own have two names of
/// up to 64 KiB.
const HEAD: usize = 1 << 18;
/// The most bytes of a packet.
const MOST_BYTES: usize = 1 << 28;
/// The most fields of a packet's header and context.
const MOST_HEAD_FIELDS: usize = 64;
/// Bytes of packets that were read, from which on they are given away.
const READ_BYTES: usize = 1 << 20;

/// A file of packets.
#[derive(Debug)]
pub(super) struct StreamFile<'m> {
    file: File,
    name: String,
    described: &'m Metadata,
    /// Bytes of the file: packets that were read, the packet, and perhaps some of the next one.
    bytes: Vec<u8>,
    /// The offset in the file of `bytes`.
    offset: u64,
    packet: Packet<'m>,
    current: Option<Decoded<'m>>,
    /// True if no further packet can be found.
    has_ended: bool,
    /// Events that the latest packet reports as discarded, in all packets so far.
    discarded: u64,
    /// The latest packet's place among all packets of its stream.
    sequence: Option<u64>,
    losses: Losses,
}

/// A packet whose header and context were read.
#[derive(Debug, Default)]
struct Packet<'m> {
    /// Its place in `bytes`.
    from: usize,
    /// Its size in bytes; 0 before the first one.
    size: usize,
    /// The end of its content, in bits.
    content: usize,
    /// True if the content goes on behind the end of the file.
    is_cut: bool,
    /// The next event, in bits.
    at: usize,
    /// The time of the latest event.
    now: u64,
    /// The types that were looked at.
    steps: usize,
    stream: Option<&'m Stream>,
    /// The fields of its header and its context.
    shared: Fields<'m>,
}

/// What is missing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Losses {
    pub(super) events: u64,
    /// Packets with an unknown number of events.
    pub(super) packets: u64,
}

/// An event and its fields.
#[derive(Debug)]
pub(super) struct Decoded<'m> {
    pub(super) name: &'m str,
    pub(super) time: u64,
    pub(super) fields: Fields<'m>,
    /// The first field that is its own, not its packet's.
    pub(super) own: usize,
}

/// Sizes of a packet in bits, if it has them.
struct Sizes {
    content: Option<usize>,
    packet: Option<usize>,
}

// === impl StreamFile ===

impl<'m> StreamFile<'m> {
    pub(super) fn new(file: File, name: &str, described: &'m Metadata) -> Self {
        Self {
            file,
            name: name.to_owned(),
            described,
            bytes: Vec::new(),
            offset: 0,
            packet: Packet::default(),
            current: None,
            has_ended: false,
            discarded: 0,
            sequence: None,
            losses: Losses::default(),
        }
    }

    /// The time of the current event.
    pub(super) fn time(&self) -> Option<u64> {
        self.current.as_ref().map(|event| event.time)
    }

    /// What is missing since the last call.
    pub(super) fn take_losses(&mut self) -> Losses {
        std::mem::take(&mut self.losses)
    }

    /// Goes to the next event. Afterwards there is none if the file has ended.
    ///
    /// # Errors
    ///
    /// The file cannot be read. Or a packet is damaged, and the next call goes on with the next
    /// packet.
    pub(super) fn advance(&mut self) -> Result<(), OpenError> {
        self.current = None;
        while self.packet.at >= self.packet.content {
            if std::mem::take(&mut self.packet.is_cut) {
                return Err(self.damaged("the file ends within the packet"));
            }
            if !self.next_packet()? {
                return Ok(());
            }
        }
        let begun = self.packet.at;
        match self.decoded() {
            Ok(event) if self.packet.at > begun => {
                self.packet.now = event.time;
                self.current = Some(event);
                Ok(())
            }
            Ok(_) => Err(self.damaged("an event has no size")),
            Err(why) => Err(self.damaged(why)),
        }
    }

    /// The current event, and the bytes of its packet.
    pub(super) fn event(&self) -> Option<(&Decoded<'m>, &[u8])> {
        Some((self.current.as_ref()?, self.here()))
    }

    /// Leaves the rest of the packet out.
    fn damaged(&mut self, why: &str) -> OpenError {
        let error = OpenError::CtfPacket {
            file: self.name.clone(),
            offset: self.offset + self.packet.from as u64,
            why: why.to_owned(),
        };
        self.packet.at = self.packet.content;
        self.packet.is_cut = false;
        error
    }

    /// Leaves the rest of the file out.
    fn ended(&mut self, why: &str) -> OpenError {
        self.has_ended = true;
        self.damaged(why)
    }

    /// Reads the next packet. False at the end of the file.
    fn next_packet(&mut self) -> Result<bool, OpenError> {
        if self.has_ended {
            return Ok(false);
        }
        let behind = self.packet.from.saturating_add(self.packet.size);
        let mut from = behind.min(self.bytes.len());
        if from >= READ_BYTES || from == self.bytes.len() {
            self.bytes.drain(..from);
            self.offset += from as u64;
            from = 0;
        }
        self.packet = Packet {
            from,
            ..Packet::default()
        };
        self.fill(HEAD)?;
        if self.bytes.len() == from {
            return Ok(false);
        }
        let sizes = match self.head() {
            Ok(sizes) => sizes,
            // Without a size, the rest of the file is lost.
            Err(why) => return Err(self.ended(why)),
        };
        let wanted = sizes.packet.map_or(MOST_BYTES + 1, |bits| bits.div_ceil(8));
        if wanted > MOST_BYTES && sizes.packet.is_some() {
            return Err(self.ended("the packet has more than 256 MiB"));
        }
        self.fill(wanted)?;
        let present = self.bytes.len() - from;
        if sizes.packet.is_none() && present > MOST_BYTES {
            return Err(self.ended("the packet has more than 256 MiB"));
        }
        let packet = &mut self.packet;
        packet.size = sizes.packet.map_or(present, |bits| bits.div_ceil(8)).max(1);
        let present = present.min(packet.size) * 8;
        let content = sizes.content.unwrap_or(present);
        packet.content = content.min(present);
        packet.is_cut = content > present;
        if packet.at > packet.content && !packet.is_cut {
            return Err(self.damaged("its content is smaller than its head"));
        }
        Ok(true)
    }

    /// Reads until so many bytes of the packet are there, or the file ends.
    fn fill(&mut self, wanted: usize) -> io::Result<()> {
        let present = self.bytes.len() - self.packet.from;
        let missing = wanted.saturating_sub(present) as u64;
        let file = &mut self.file;
        file.take(missing).read_to_end(&mut self.bytes)?;
        Ok(())
    }

    /// The bytes of the packet, and of what follows it.
    fn here(&self) -> &[u8] {
        self.bytes.get(self.packet.from..).unwrap_or_default()
    }

    /// Reads the header and the context of the packet: its sizes, its first time, and what was lost
    /// before it.
    fn head(&mut self) -> Result<Sizes, &'static str> {
        let mut fields = Fields::default();
        let mut bits = Bits::new(self.here(), usize::MAX, 0);
        let header = bits.decode_any(self.described.packet_header.as_ref(), &mut fields);
        header.map_err(Bad::why)?;
        let magic = fields.number("magic");
        if magic.is_some_and(|magic| magic != u64::from(MAGIC)) {
            return Err("it is no packet: its number is wrong");
        }
        let id = fields.number("stream_id").unwrap_or(0);
        let stream = self.described.streams.get(&id);
        let stream = stream.ok_or("the metadata does not describe its stream")?;
        let context = bits.decode_any(stream.packet_context.as_ref(), &mut fields);
        context.map_err(Bad::why)?;
        if fields.len() > MOST_HEAD_FIELDS {
            return Err("its head has more than 64 fields");
        }
        let size = |name| {
            let number = fields.number(name);
            number.map(|bits| usize::try_from(bits).unwrap_or(usize::MAX))
        };
        let (content, packet) = (size("content_size"), size("packet_size"));
        if let (Some(content), Some(packet)) = (content, packet)
            && content > packet
        {
            return Err("its content is larger than the packet");
        }
        let begin = fields.number("timestamp_begin").or(bits.first_time);
        let discarded = fields.number("events_discarded");
        let sequence = fields.number("packet_seq_num");
        let (at, steps) = (bits.at, bits.steps);
        self.packet = Packet {
            from: self.packet.from,
            at,
            steps,
            now: begin.unwrap_or(0),
            stream: Some(stream),
            shared: fields,
            ..Packet::default()
        };
        if let Some(discarded) = discarded {
            // The counter goes on over all packets of a stream, also over its earlier files. It
            // begins anew behind its greatest number.
            let goes_on = self.sequence.is_none() && sequence.is_some_and(|sequence| sequence > 0);
            let before = std::mem::replace(&mut self.discarded, discarded);
            let since = match goes_on {
                true => 0,
                false => discarded.checked_sub(before).unwrap_or(discarded),
            };
            self.losses.events = self.losses.events.saturating_add(since);
        }
        if let Some(sequence) = sequence {
            let before = self.sequence.replace(sequence);
            let next = before.map_or(sequence, |before| before.saturating_add(1));
            let missing = sequence.saturating_sub(next);
            self.losses.packets = self.losses.packets.saturating_add(missing);
        }
        Ok(Sizes {
            content: content.or(packet),
            packet: packet.or(content),
        })
    }

    /// Decodes the next event of the packet, and goes behind it.
    fn decoded(&mut self) -> Result<Decoded<'m>, &'static str> {
        let packet = &self.packet;
        let stream = packet.stream.ok_or("the packet has no stream")?;
        let mut fields = packet.shared.clone();
        let mut bits = Bits::new(self.here(), packet.content, packet.now);
        (bits.at, bits.steps) = (packet.at, packet.steps);
        let before = fields.len();
        let header = bits.decode_any(stream.event_header.as_ref(), &mut fields);
        header.map_err(Bad::why)?;
        // The packet may have fields of these names, too.
        let number = |name| fields.number_behind(before, name);
        let id = number("id").unwrap_or(0);
        // A time without a clock is in nanoseconds.
        let time = match bits.first_time {
            Some(_) => bits.now,
            None => number("timestamp").unwrap_or(packet.now),
        };
        let event = self.described.class(stream.id, id);
        let event = event.ok_or("the metadata does not describe an event")?;
        let context = bits.decode_any(stream.event_context.as_ref(), &mut fields);
        context.map_err(Bad::why)?;
        let own = fields.len();
        for of in [&event.context, &event.fields] {
            let decoded = bits.decode_any(of.as_ref(), &mut fields);
            decoded.map_err(Bad::why)?;
        }
        let (at, steps) = (bits.at, bits.steps);
        (self.packet.at, self.packet.steps) = (at, steps);
        Ok(Decoded {
            name: &event.name,
            time,
            fields,
            own,
        })
    }
}
