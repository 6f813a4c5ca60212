//! The RPCs on policies.

use std::time::Duration;

use tonic::Request;
use xrayd_proto::v1;

use super::{authorise::Authority, convert, handling::Service, trigger::Plan};
use crate::{
    audit::{Call, Operation},
    policies::{Policies, PolicySource, PolicySpec, PolicyStatus, TriggerSpec},
    refusal::{Reason, Refusal},
    types::LeaseId,
};

/// The longest name in an audit record, in characters.
const LONGEST_NAME: usize = 64;

type Result<T> = std::result::Result<T, tonic::Status>;

impl Service {
    pub(super) async fn list_of_policies(
        &self,
        request: Request<v1::ListPoliciesRequest>,
    ) -> Result<v1::ListPoliciesResponse> {
        let wanted = request.get_ref().name.clone();
        let listed = self.with_policies(&request, Operation::ListPolicies, |policies, _| {
            policies.statuses()
        });
        let policies = listed.await?.into_iter();
        let policies = policies.filter(|policy| wanted.is_empty() || policy.name == wanted);
        // All texts together may be too long for an answer.
        let policies = policies.map(|policy| status(policy, !wanted.is_empty()));
        Ok(v1::ListPoliciesResponse {
            policies: policies.collect(),
        })
    }

    pub(super) async fn apply_policy_of(
        &self,
        request: Request<v1::ApplyPolicyRequest>,
    ) -> Result<v1::ApplyPolicyResponse> {
        let v1::ApplyPolicyRequest { text, lasts_s } = request.get_ref().clone();
        let lasts = (lasts_s > 0).then(|| Duration::from_secs(lasts_s));
        let work = move |policies: &Policies, call: &mut Call| {
            let spec = match PolicySpec::parse(&text) {
                Ok(spec) => spec,
                Err(mistakes) => return Ok((String::new(), mistakes)),
            };
            let name = spec.name.clone();
            call.note(name.clone());
            policies.apply((spec, text), lasts)?;
            Ok((name, Vec::new()))
        };
        let applied = self.with_policies(&request, Operation::ApplyPolicy, work);
        let (name, mistakes) = applied.await?;
        let mistakes = mistakes.into_iter().map(convert::mistake).collect();
        Ok(v1::ApplyPolicyResponse { name, mistakes })
    }

    pub(super) async fn remove_policy_of(
        &self,
        request: Request<v1::RemovePolicyRequest>,
    ) -> Result<v1::RemovePolicyResponse> {
        let name = request.get_ref().name.clone();
        let removed = self.with_policies(&request, Operation::RemovePolicy, move |all, call| {
            call.note(name.chars().take(LONGEST_NAME).collect());
            all.remove(&name)
        });
        removed.await?;
        Ok(v1::RemovePolicyResponse {})
    }

    pub(super) async fn reload(
        &self,
        request: Request<v1::ReloadPoliciesRequest>,
    ) -> Result<v1::ReloadPoliciesResponse> {
        let v1::ReloadPoliciesRequest {} = *request.get_ref();
        let work = |policies: &Policies, _: &mut Call| policies.load();
        self.with_policies(&request, Operation::ReloadPolicies, work)
            .await?;
        Ok(v1::ReloadPoliciesResponse {})
    }

    /// Calls `work` with the policies, if the caller may see and change them.
    async fn with_policies<Q, T: Send + 'static>(
        &self,
        request: &Request<Q>,
        operation: Operation,
        work: impl FnOnce(&Policies, &mut Call) -> std::result::Result<T, Refusal> + Send + 'static,
    ) -> Result<T> {
        let (call, authority) = self.call(request, operation)?;
        let policies = self.policies.clone();
        self.blocking(call, move |_, call| {
            match operation {
                Operation::ListPolicies => authority.seeing_policies()?,
                _ => authority.policies()?,
            }
            work(&policies.ok_or_else(no_policies)?, call)
        })
        .await
    }
}

fn no_policies() -> Refusal {
    let message = "policies are carried out by a daemon, and none is running";
    Refusal::new(Reason::NoState, message)
}

/// The plan of a trigger of a policy, and the authority to carry it out.
///
/// # Errors
/// The caller may not arm it, or the policy is not in force, or has another trigger there.
pub(super) fn trigger(
    policies: Option<&Policies>,
    wanted: &v1::TriggerOfPolicy,
    authority: Authority,
) -> std::result::Result<(Plan, Authority), Refusal> {
    let name = &wanted.policy;
    let lease = LeaseId::of_policy(name);
    // Checked first, so that others do not learn which policies there are.
    let authority = authority.acting_for(lease)?;
    let trigger = found(policies.ok_or_else(no_policies)?, wanted);
    let trigger = trigger.ok_or_else(|| {
        let name: String = name.chars().take(LONGEST_NAME).collect();
        let message = format!("the policy {name:?} is not in force, or has no such trigger");
        Refusal::new(Reason::Policy, message)
    })?;
    Ok((Plan::of_policy(lease, &trigger), authority))
}

/// True if a policy in force has this trigger.
pub(super) fn has_trigger(policies: &Policies, wanted: &v1::TriggerOfPolicy) -> bool {
    found(policies, wanted).is_some()
}

fn found(policies: &Policies, wanted: &v1::TriggerOfPolicy) -> Option<TriggerSpec> {
    let v1::TriggerOfPolicy {
        policy: name,
        index,
        expected,
    } = wanted;
    let mut known = policies.latest().into_iter();
    let policy = known.find(|known| known.name == *name && !known.has_expired)?;
    let trigger = policy.triggers.get(usize::try_from(*index).ok()?)?;
    (expected.as_ref() == Some(&policy_trigger(trigger))).then(|| trigger.clone())
}

fn policy_trigger(trigger: &TriggerSpec) -> v1::PolicyTrigger {
    let TriggerSpec {
        when,
        event_formats,
        conditions: _,
        before,
        after,
        limit,
        period,
    } = trigger;
    v1::PolicyTrigger {
        when: when.clone(),
        before_ns: before.map_or(0, ns),
        after_ns: ns(*after),
        limit: *limit,
        limit_period_ns: ns(*period),
        event_formats: event_formats.clone(),
    }
}

fn status(status: PolicyStatus, with_text: bool) -> v1::PolicyStatus {
    let PolicyStatus {
        name,
        text,
        source,
        has_expired,
        expires,
        mistakes,
        matched,
        traced,
        too_young,
        beyond,
        refused,
        events,
        lost,
        mode,
        output,
        triggers,
    } = status;
    v1::PolicyStatus {
        name,
        text: match with_text {
            true => text.as_ref().to_owned(),
            false => String::new(),
        },
        path: match source {
            PolicySource::File(path) => path.display().to_string(),
            PolicySource::Applied => String::new(),
        },
        has_expired,
        expires_s: expires.unwrap_or(0),
        mistakes: mistakes.into_iter().map(convert::mistake).collect(),
        matched,
        traced: traced
            .into_iter()
            .map(|process| v1::TracedProcess {
                pid: process.pid.as_u32(),
                meant_since_ns: ns(process.meant_since),
                traced_since_ns: ns(process.traced_since),
            })
            .collect(),
        too_young,
        beyond,
        refused: refused
            .into_iter()
            .map(|(pid, refusal)| v1::PolicyRefusal {
                pid: pid.as_u32(),
                reason: refusal.reason.id().to_owned(),
                message: refusal.message,
            })
            .collect(),
        events,
        lost,
        mode: convert::mode_of(mode).into(),
        output: output.map(|output| v1::PolicyOutput {
            every_ns: ns(output.every),
            file_bytes: output.file_bytes,
            keep_bytes: output.keep_bytes,
            keep_ns: output.keep_for.map_or(0, ns),
        }),
        triggers: triggers.iter().map(policy_trigger).collect(),
    }
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
