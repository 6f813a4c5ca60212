//! The records as values, and the encoding of their fields. The order of records is checked in
//! `verify`.

use std::fmt;

use crate::llvm::ByteOrder;

/// Bytes of a function record.
pub(super) const FUNCTION_LEN: usize = 8;
/// Bytes of a metadata record, without the payload of an event.
pub(super) const METADATA_LEN: usize = 16;

/// The greatest function id that a record can hold.
pub const MAX_FUNCTION_ID: u32 = (1 << 28) - 1;

/// A record; `P` is the payload of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record<P> {
    /// The length of the buffer behind this record.
    BufferExtents {
        /// The length in bytes.
        size: u64,
    },
    /// The begin of a thread's buffer.
    NewBuffer {
        /// The thread.
        tid: i32,
    },
    /// The end of the buffer; padding follows.
    EndOfBuffer,
    /// The thread runs on another processor from here on.
    NewCpu {
        /// The processor.
        cpu: u16,
        /// The counter.
        tsc: u64,
    },
    /// The whole counter.
    TscWrap {
        /// The counter.
        tsc: u64,
    },
    /// The time of day.
    WallTime {
        /// Whole seconds of the runtime's clock.
        seconds: u64,
        /// Microseconds.
        micros: u32,
    },
    /// The process.
    Pid {
        /// Its id.
        pid: i32,
    },
    /// An argument of the call whose entry comes before it.
    CallArgument {
        /// The argument.
        value: u64,
    },
    /// An entry or an exit.
    Function {
        /// Entry or exit.
        kind: FunctionKind,
        /// The function, at most [`MAX_FUNCTION_ID`].
        function: u32,
        /// Ticks since the previous record.
        delta: u32,
    },
    /// A custom event, before version 5.
    CustomEvent {
        /// The whole counter.
        tsc: u64,
        /// The processor; 0 before version 4.
        cpu: u16,
        /// The data.
        data: P,
    },
    /// A custom event, from version 5.
    CustomEventDelta {
        /// Ticks since the previous record.
        delta: i32,
        /// The data.
        data: P,
    },
    /// A typed event.
    TypedEvent {
        /// Ticks since the previous record.
        delta: i32,
        /// The type, as the program has registered it.
        event_type: u16,
        /// The data.
        data: P,
    },
}

/// The kind of a function record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FunctionKind {
    /// The function begins.
    Enter,
    /// The function ends.
    Exit,
    /// The function ends by a jump to another one.
    TailExit,
    /// The function begins; its argument follows.
    EnterArg,
}

/// The kinds of records, by LLVM's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `BufferExtents`
    BufferExtents,
    /// `NewBuffer`
    NewBuffer,
    /// `WallClockTime`
    WallClockTime,
    /// `PIDEntry`
    PidEntry,
    /// `NewCPUId`
    NewCpuId,
    /// `TSCWrap`
    TscWrap,
    /// `CustomEvent`
    CustomEvent,
    /// `Function`
    Function,
    /// `CallArg`
    CallArg,
    /// `EndOfBuffer`
    EndOfBuffer,
    /// `TypedEvent`
    TypedEvent,
}

/// The end from which the bits of a record's first byte are numbered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BitOrder {
    LowFirst,
    HighFirst,
}

// === impl Record ===

impl<P> Record<P> {
    /// The kind of the record.
    pub const fn kind(&self) -> Kind {
        match self {
            Self::BufferExtents { .. } => Kind::BufferExtents,
            Self::NewBuffer { .. } => Kind::NewBuffer,
            Self::EndOfBuffer => Kind::EndOfBuffer,
            Self::NewCpu { .. } => Kind::NewCpuId,
            Self::TscWrap { .. } => Kind::TscWrap,
            Self::WallTime { .. } => Kind::WallClockTime,
            Self::Pid { .. } => Kind::PidEntry,
            Self::CallArgument { .. } => Kind::CallArg,
            Self::Function { .. } => Kind::Function,
            Self::CustomEvent { .. } | Self::CustomEventDelta { .. } => Kind::CustomEvent,
            Self::TypedEvent { .. } => Kind::TypedEvent,
        }
    }

    /// The payload of a user event.
    pub(super) fn payload(&self) -> Option<P>
    where
        P: Copy,
    {
        match self {
            Self::CustomEvent { data, .. }
            | Self::CustomEventDelta { data, .. }
            | Self::TypedEvent { data, .. } => Some(*data),
            _ => None,
        }
    }

    /// The same record with another representation of its payload.
    #[inline]
    pub fn map<Q>(self, payload: impl FnOnce(P) -> Q) -> Record<Q> {
        match self {
            Self::BufferExtents { size } => Record::BufferExtents { size },
            Self::NewBuffer { tid } => Record::NewBuffer { tid },
            Self::EndOfBuffer => Record::EndOfBuffer,
            Self::NewCpu { cpu, tsc } => Record::NewCpu { cpu, tsc },
            Self::TscWrap { tsc } => Record::TscWrap { tsc },
            Self::WallTime { seconds, micros } => Record::WallTime { seconds, micros },
            Self::Pid { pid } => Record::Pid { pid },
            Self::CallArgument { value } => Record::CallArgument { value },
            Self::Function {
                kind,
                function,
                delta,
            } => Record::Function {
                kind,
                function,
                delta,
            },
            Self::CustomEvent { tsc, cpu, data } => Record::CustomEvent {
                tsc,
                cpu,
                data: payload(data),
            },
            Self::CustomEventDelta { delta, data } => Record::CustomEventDelta {
                delta,
                data: payload(data),
            },
            Self::TypedEvent {
                delta,
                event_type,
                data,
            } => Record::TypedEvent {
                delta,
                event_type,
                data: payload(data),
            },
        }
    }
}

impl Record<i32> {
    /// A metadata record from the bytes behind its first one. Its payload is the size that the
    /// record claims. `None` for function records.
    pub(super) fn metadata(
        kind: Kind,
        fields: &[u8; METADATA_LEN - 1],
        order: ByteOrder,
        version: u16,
    ) -> Option<Self> {
        let at = |at| order.u64(fields, at);
        Some(match kind {
            Kind::BufferExtents => Self::BufferExtents { size: at(0) },
            Kind::NewBuffer => Self::NewBuffer {
                tid: order.i32(fields, 0),
            },
            Kind::EndOfBuffer => Self::EndOfBuffer,
            Kind::NewCpuId => Self::NewCpu {
                cpu: order.u16(fields, 0),
                tsc: at(2),
            },
            Kind::TscWrap => Self::TscWrap { tsc: at(0) },
            Kind::WallClockTime => Self::WallTime {
                seconds: at(0),
                micros: order.u32(fields, 8),
            },
            Kind::PidEntry => Self::Pid {
                pid: order.i32(fields, 0),
            },
            Kind::CallArg => Self::CallArgument { value: at(0) },
            Kind::CustomEvent if version >= 5 => Self::CustomEventDelta {
                delta: order.i32(fields, 4),
                data: order.i32(fields, 0),
            },
            Kind::CustomEvent => Self::CustomEvent {
                tsc: at(4),
                cpu: if version == 4 {
                    order.u16(fields, 12)
                } else {
                    0
                },
                data: order.i32(fields, 0),
            },
            Kind::TypedEvent => Self::TypedEvent {
                delta: order.i32(fields, 4),
                event_type: order.u16(fields, 8),
                data: order.i32(fields, 0),
            },
            Kind::Function => return None,
        })
    }
}

// === impl FunctionKind ===

impl FunctionKind {
    pub(in crate::llvm) const fn number(self) -> u32 {
        match self {
            Self::Enter => 0,
            Self::Exit => 1,
            Self::TailExit => 2,
            Self::EnterArg => 3,
        }
    }

    #[inline]
    pub(in crate::llvm) const fn from_number(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::Enter),
            1 => Some(Self::Exit),
            2 => Some(Self::TailExit),
            3 => Some(Self::EnterArg),
            _ => None,
        }
    }
}

// === impl Kind ===

impl Kind {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::BufferExtents => "BufferExtents",
            Self::NewBuffer => "NewBuffer",
            Self::WallClockTime => "WallClockTime",
            Self::PidEntry => "PIDEntry",
            Self::NewCpuId => "NewCPUId",
            Self::TscWrap => "TSCWrap",
            Self::CustomEvent => "CustomEvent",
            Self::Function => "Function",
            Self::CallArg => "CallArg",
            Self::EndOfBuffer => "EndOfBuffer",
            Self::TypedEvent => "TypedEvent",
        }
    }

    /// The kind of metadata record that has this number in a file.
    pub(super) const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::NewBuffer,
            1 => Self::EndOfBuffer,
            2 => Self::NewCpuId,
            3 => Self::TscWrap,
            4 => Self::WallClockTime,
            5 => Self::CustomEvent,
            6 => Self::CallArg,
            7 => Self::BufferExtents,
            8 => Self::TypedEvent,
            9 => Self::PidEntry,
            _ => return None,
        })
    }

    /// The number of a metadata record; function records have none.
    pub(super) const fn number(self) -> Option<u8> {
        Some(match self {
            Self::NewBuffer => 0,
            Self::EndOfBuffer => 1,
            Self::NewCpuId => 2,
            Self::TscWrap => 3,
            Self::WallClockTime => 4,
            Self::CustomEvent => 5,
            Self::CallArg => 6,
            Self::BufferExtents => 7,
            Self::TypedEvent => 8,
            Self::PidEntry => 9,
            Self::Function => return None,
        })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

// === impl BitOrder ===

impl BitOrder {
    /// The order by the first record of a log. In all versions it is metadata, BufferExtents or
    /// NewBuffer.
    pub(super) fn detect(order: ByteOrder, first: Option<u8>) -> Self {
        match (order, first) {
            (ByteOrder::Big, Some(first)) if first & 0x80 != 0 => Self::HighFirst,
            _ => Self::LowFirst,
        }
    }

    /// The kind of the metadata record that begins with this byte; `None` for a function record.
    #[inline]
    pub(super) const fn metadata(self, first: u8) -> Option<u8> {
        match self {
            Self::LowFirst if first & 1 != 0 => Some(first >> 1),
            Self::HighFirst if first & 0x80 != 0 => Some(first & 0x7f),
            _ => None,
        }
    }

    pub(super) const fn first_byte(self, kind: u8) -> u8 {
        match self {
            Self::LowFirst => kind << 1 | 1,
            Self::HighFirst => kind | 0x80,
        }
    }

    /// The number of a function record's kind, and its function.
    #[inline]
    pub(super) const fn function(self, word: u32) -> (u32, u32) {
        match self {
            Self::LowFirst => (word >> 1 & 7, word >> 4),
            Self::HighFirst => (word >> 28 & 7, word & MAX_FUNCTION_ID),
        }
    }

    pub(super) const fn function_word(self, kind: u32, function: u32) -> u32 {
        match self {
            Self::LowFirst => kind << 1 | function << 4,
            Self::HighFirst => kind << 28 | function,
        }
    }
}
