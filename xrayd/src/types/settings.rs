//! The settings of a session: what it records, in which mode, and what that may cost.

use super::{Budget, Filter, Mode};
use crate::refusal::Result;

/// The settings of a session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// What the session does with events.
    pub mode: Mode,
    /// Which calls are recorded, and which events are kept.
    pub filter: Filter,
    /// The limit on the cost of tracing.
    pub budget: Budget,
}

/// A change of settings. A setting that is `None` stays as it is, so the default changes nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SettingsUpdate {
    /// The new mode.
    pub mode: Option<Mode>,
    /// The new filter.
    pub filter: Option<Filter>,
    /// The new limit on the cost of tracing.
    pub budget: Option<Budget>,
}

// === impl Settings ===

impl Settings {
    /// Checks each setting, and that they go together.
    ///
    /// # Errors
    /// A filter or a budget that is invalid by itself, or a budget that does not suit the mode or
    /// the filter.
    pub fn check(&self) -> Result<()> {
        self.filter.check()?;
        self.budget.check()?;
        self.budget.suits(self.mode, &self.filter)
    }
}

// === impl SettingsUpdate ===

impl SettingsUpdate {
    /// True if the update sets nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The settings after the update.
    pub fn applied_to(&self, settings: &Settings) -> Settings {
        let Self {
            mode,
            filter,
            budget,
        } = self;
        Settings {
            mode: mode.unwrap_or(settings.mode),
            filter: filter.as_ref().unwrap_or(&settings.filter).clone(),
            budget: budget.as_ref().unwrap_or(&settings.budget).clone(),
        }
    }
}

impl From<Mode> for SettingsUpdate {
    fn from(mode: Mode) -> Self {
        Self {
            mode: Some(mode),
            ..Self::default()
        }
    }
}

impl From<Filter> for SettingsUpdate {
    fn from(filter: Filter) -> Self {
        Self {
            filter: Some(filter),
            ..Self::default()
        }
    }
}

impl From<Budget> for SettingsUpdate {
    fn from(budget: Budget) -> Self {
        Self {
            budget: Some(budget),
            ..Self::default()
        }
    }
}

impl From<Settings> for SettingsUpdate {
    fn from(settings: Settings) -> Self {
        let Settings {
            mode,
            filter,
            budget,
        } = settings;
        Self {
            mode: Some(mode),
            filter: Some(filter),
            budget: Some(budget),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_update_changes_only_what_it_sets() {
        let settings = Settings {
            mode: Mode::Flight,
            filter: Filter::default(),
            budget: Budget::overhead(20_000),
        };
        assert_eq!(SettingsUpdate::default().applied_to(&settings), settings);
        let updated = SettingsUpdate::from(Mode::Stream).applied_to(&settings);
        assert_eq!(updated.mode, Mode::Stream);
        assert_eq!(updated.budget, settings.budget);
        let updated = SettingsUpdate::from(Budget::None).applied_to(&settings);
        assert_eq!((updated.mode, updated.budget), (Mode::Flight, Budget::None));
    }
}
