//! Virtual token counters: what has been served to whom.

use std::collections::HashMap;

use crate::ids::{Generation, Tenant};

/// What a token of a prompt counts.
pub(super) const INPUT_WEIGHT: u64 = 1;
/// What a generated token counts: it takes a step of its own.
pub(super) const OUTPUT_WEIGHT: u64 = 2;

/// Accounts without a sequence that are remembered at most.
const MAX_IDLE: usize = 1024;

/// Whom service is counted for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Account {
    /// A tenant.
    Tenant(Tenant),
    /// The users of an adapter who have no tenant.
    Adapter(Generation),
    /// The users of the base model who have no tenant.
    Base,
}

/// An account that has sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AccountId(usize);

/// All accounts.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    ids: HashMap<Account, AccountId>,
    slots: Vec<Slot>,
    vacant: Vec<AccountId>,
    /// Below this nobody starts to count: what the last account had when it left.
    floor: u64,
}

#[derive(Debug)]
struct Slot {
    served: u64,
    sequences: usize,
}

impl Accounts {
    /// Adds a sequence to an account. One that had none is lifted to what the least served has got, so that nobody saves service up by staying
    /// away.
    pub(super) fn enter(&mut self, account: Account) -> AccountId {
        let floor = self.floor();
        let id = *self.ids.entry(account).or_insert_with(|| {
            let slot = Slot {
                served: floor,
                sequences: 0,
            };
            match self.vacant.pop() {
                Some(id) => {
                    self.slots[id.0] = slot;
                    id
                }
                None => {
                    self.slots.push(slot);
                    AccountId(self.slots.len() - 1)
                }
            }
        });
        let slot = &mut self.slots[id.0];
        if slot.sequences == 0 {
            slot.served = slot.served.max(floor);
        }
        slot.sequences += 1;
        id
    }

    /// Takes a sequence off its account. The account stays known as long as it has got more than others.
    pub(super) fn leave(&mut self, id: AccountId) {
        let slot = &mut self.slots[id.0];
        slot.sequences -= 1;
        if slot.sequences > 0 {
            return;
        }
        let served = slot.served;
        self.floor = if self.active().next().is_some() {
            self.floor()
        } else {
            self.floor.max(served)
        };
        if served <= self.floor || self.ids.len() - self.active().count() > MAX_IDLE {
            self.forget();
        }
    }

    /// Drops accounts without sequences that would begin at the floor anyway, and all of them if they are too many.
    fn forget(&mut self) {
        let (slots, floor) = (&self.slots, self.floor);
        let idle = self.ids.values().filter(|id| slots[id.0].sequences == 0).count();
        self.ids.retain(|_, id| {
            let slot = &slots[id.0];
            let keep = slot.sequences > 0 || (slot.served > floor && idle <= MAX_IDLE);
            if !keep {
                self.vacant.push(*id);
            }
            keep
        });
    }

    /// Counts `amount` for an account.
    pub(super) fn charge(&mut self, id: AccountId, amount: u64) {
        self.slots[id.0].served += amount;
    }

    /// What an account has been served, in weighted tokens.
    pub(super) fn served(&self, id: AccountId) -> u64 {
        self.slots[id.0].served
    }

    /// Sequences of all accounts.
    pub(super) fn sequences(&self) -> usize {
        self.active().map(|slot| slot.sequences).sum()
    }

    fn active(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().filter(|slot| slot.sequences > 0)
    }

    fn floor(&self) -> u64 {
        let least = self.active().map(|slot| slot.served).min();
        least.unwrap_or(self.floor).max(self.floor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> Account {
        Account::Tenant(Tenant(name.to_owned()))
    }

    #[test]
    fn nobody_saves_service_up_by_staying_away() {
        let mut accounts = Accounts::default();
        let a = accounts.enter(tenant("a"));
        accounts.charge(a, 100);
        let b = accounts.enter(tenant("b"));
        assert_eq!(accounts.served(b), 100, "lifted to the least that is active");
        accounts.charge(b, 5);
        accounts.leave(a);
        accounts.leave(b);
        let c = accounts.enter(tenant("c"));
        assert_eq!(accounts.served(c), 105, "and to the last that left");
    }

    #[test]
    fn nobody_forgets_a_debt_by_going_away() {
        let mut accounts = Accounts::default();
        let a = accounts.enter(tenant("a"));
        let b = accounts.enter(tenant("b"));
        accounts.charge(b, 50);
        accounts.leave(b);
        let b = accounts.enter(tenant("b"));
        assert_eq!((accounts.served(a), accounts.served(b)), (0, 50));
        assert_eq!(accounts.sequences(), 2);
    }

    #[test]
    fn accounts_that_left_take_no_memory_for_ever() {
        let mut accounts = Accounts::default();
        let stays = accounts.enter(tenant("stays"));
        for number in 0..10 * MAX_IDLE {
            let id = accounts.enter(tenant(&number.to_string()));
            accounts.charge(id, 7);
            accounts.leave(id);
        }
        assert!(accounts.ids.len() <= MAX_IDLE + 2, "{}", accounts.ids.len());
        assert!(accounts.slots.len() <= MAX_IDLE + 2, "{}", accounts.slots.len());
        accounts.leave(stays);
        assert_eq!(accounts.sequences(), 0);
    }
}
