# An invoice, and the PDF that customers get.
class Invoice
  TAX_RATE = 0.19

  def initialize(customer, lines)
    @customer = customer
    @lines = lines
  end

  def net_cents
    @lines.sum { |line| line.cents * line.quantity }
  end

  def tax_cents
    (net_cents * TAX_RATE).round
  end

  def render_pdf(printer)
    printer.heading("Invoice for #{@customer.name}")
    @lines.each { |line| printer.row(line.title, line.cents) }
    printer.total(net_cents + tax_cents)
  end
end
