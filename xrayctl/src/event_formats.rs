//! `--event-format`: the fields in the data of custom and typed events.

use xray_trace::event_format::EventFormat;

/// Descriptions of the data of events, by the types of events.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct EventFormats {
    /// Show the data of custom or typed events as fields, like 'order=id:u64,price:f64,symbol:str8'
    ///
    /// TYPE is custom, or the number or the name of a type of typed events. FIELDS are the fields
    /// in their order, without gaps between them, as NAME:KIND. Kinds are u8 to u64, i8 to i64, f32
    /// and f64 (little-endian), strN (a text in N bytes, up to the first zero byte), bytesN (N
    /// bytes), and str and bytes for the rest. padN skips N bytes. The option can be given several
    /// times; the last one for a type counts.
    #[arg(long, value_name = "TYPE=FIELDS", value_parser = described)]
    event_format: Vec<(EventsOf, EventFormat)>,
}

/// The events that a description is for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum EventsOf {
    Custom,
    /// The type of this number, or of this name.
    Typed(String),
}

// === impl EventFormats ===

impl EventFormats {
    /// No descriptions.
    #[cfg(test)]
    pub(crate) const NONE: Self = Self {
        event_format: Vec::new(),
    };

    /// The description of events of this type and of this name of the type; of custom events if
    /// there is no type. The last one that was given counts.
    pub(crate) fn of(&self, typed: Option<(u16, Option<&str>)>) -> Option<&EventFormat> {
        let formats = self.event_format.iter().rev();
        let mut formats = formats.filter(|(events, _)| events.has(typed));
        formats.next().map(|(_, format)| format)
    }
}

// === impl EventsOf ===

impl EventsOf {
    fn has(&self, typed: Option<(u16, Option<&str>)>) -> bool {
        match (self, typed) {
            (Self::Custom, None) => true,
            (Self::Typed(wanted), Some((number, name))) => {
                name == Some(wanted) || wanted.parse() == Ok(number)
            }
            (Self::Custom, Some(_)) | (Self::Typed(_), None) => false,
        }
    }
}

/// Reads `TYPE=FIELDS`. A name of a type may contain `=`.
fn described(text: &str) -> Result<(EventsOf, EventFormat), String> {
    let Some((events, fields)) = text
        .rsplit_once('=')
        .filter(|(events, _)| !events.is_empty())
    else {
        return Err("it is not TYPE=FIELDS, such as 'order=id:u64,price:f64'".to_owned());
    };
    let format = fields.parse().map_err(|error| format!("{error}"))?;
    let events = match events {
        "custom" => EventsOf::Custom,
        _ => EventsOf::Typed(events.to_owned()),
    };
    Ok((events, format))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        formats: EventFormats,
    }

    fn parsed(formats: &[&str]) -> Result<EventFormats, String> {
        let options = formats.iter().flat_map(|format| ["--event-format", format]);
        let line = Line::try_parse_from(std::iter::once("test").chain(options));
        line.map(|line| line.formats)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_type_is_named_by_its_number_or_its_name_and_the_last_format_counts() {
        let formats = ["custom=a:u8", "7=b:u8", "x=y=c:u8", "7=d:u8"];
        let formats = parsed(&formats).unwrap();
        let name = |typed| {
            let format = formats.of(typed)?;
            format.decode(&[1]).fields.first().map(|(name, _)| *name)
        };
        assert_eq!(name(None), Some("a"));
        assert_eq!(name(Some((7, None))), Some("d"));
        assert_eq!(name(Some((7, Some("x=y")))), Some("d"));
        assert_eq!(name(Some((8, Some("x=y")))), Some("c"));
        assert_eq!(name(Some((8, Some("custom")))), None);
        assert_eq!(EventFormats::NONE.of(None), None);
    }

    #[test]
    fn bad_formats_are_refused_with_the_reason() {
        for (format, reason) in [
            ("a:u8", "not TYPE=FIELDS"),
            ("=a:u8", "not TYPE=FIELDS"),
            ("order=", "'' is not NAME:KIND"),
            ("order=a:u9", "'u9' is not a kind"),
        ] {
            let refused = parsed(&[format]).unwrap_err();
            assert!(refused.contains(reason), "{format}: {refused}");
        }
    }
}
