import { useMemo } from "react";
import { formatMoney } from "../money";
import type { CartItem } from "./types";

interface CartSummaryProps {
  items: CartItem[];
  currency: string;
  onCheckout: () => void;
}

/** What the basket costs, with a discount for many of one kind. */
export function CartSummary({ items, currency, onCheckout }: CartSummaryProps) {
  const total = useMemo(() => items.reduce((sum, item) => sum + priceOf(item), 0), [items]);
  return (
    <aside className="cart-summary">
      <p>{formatMoney(total, currency)}</p>
      <button onClick={onCheckout} disabled={items.length === 0}>
        Check out
      </button>
    </aside>
  );
}

export const priceOf = (item: CartItem): number => {
  const discount = item.quantity >= 10 ? 0.9 : 1;
  return item.unitPrice * item.quantity * discount;
};
